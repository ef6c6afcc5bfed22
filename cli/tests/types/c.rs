//! C: every kind of type, in both versions of DWARF, optimised or not, compressed or not.

use crate::declare::{body, definition, function, name, tags};
use crate::make::{COMPILERS, Made, c, run};

const SHAPES: &str = r#"
struct point { int x; long y; };
enum color { RED, GREEN = 5, BLUE = 6 };
enum sign { LESS = -1, EQUAL, MORE };
enum wide { SMALL = 1, HUGE_ = 0x123456789abcll };
enum __attribute__((packed)) tiny { T0, T200 = 200 };
typedef unsigned char u8;
typedef struct { u8 bytes[3]; } triple;
union word { unsigned number; u8 parts[4]; };
struct opaque;
struct node { struct node *next; struct opaque *hidden; int (*visit)(struct node *, const char *); };
struct flags { unsigned a : 3; unsigned b : 5; signed c : 9; unsigned char d; unsigned long e : 40; };
struct iphdr { u8 ihl : 4, version : 4; u8 tos; unsigned short len; };
struct outer { int kind; union { long number; void *pointer; }; struct { char c; } named; int tail[]; };
struct matrix { short cells[2][3]; };

void nothing(void) {}
void many(const char *format, ...) {}
int add(int a, int b) { return a + b; }
unsigned char narrow(unsigned char a) { return a * 3; }
_Bool yes(long a) { return a > 0; }
char letter(char c) { return c + 1; }
signed char sletter(signed char c) { return c * 5; }
unsigned long long wide_int(unsigned long long v) { return v; }
__int128 huge(__int128 v) { return v; }
struct point make_point(int x, long y) { struct point p = { x, y }; return p; }
enum color pick(enum color c) { return c == RED ? GREEN : c; }
enum sign compare(int a) { return a < 0 ? LESS : MORE; }
enum wide large(enum wide w) { return w == SMALL ? HUGE_ : w; }
enum tiny small(enum tiny t) { return t ? T0 : T200; }
triple three(triple t) { return t; }
union word join(union word w) { w.number *= 9; return w; }
struct node *walk(struct node *n) { return n->next; }
const int *look(const char *const restrict s, volatile int *p) { return (const int *)p; }
unsigned bits(struct flags *f, struct iphdr *ip, struct outer *o, struct matrix *m) { return f->b + ip->version + o->kind + m->cells[1][2]; }
long late(int a, int b, int c, int d, int e, struct point p, int f) { return p.y * f + p.x + e; }
long later(int a, int b, int c, int d, int e, int f, int g, struct point p, int h) { return p.y * h + p.x + g; }
struct empty { int none[0]; int one[1]; };
int last(struct empty *e) { return e->one[0]; }
double real(float f) { return f; }
int (*choose(int n))(int, int) { return add; }
static __attribute__((noinline)) int inner(int a, long b) { return a + b; }
int call_inner(int a) { return inner(a, a * 3l) * 2; }
"#;

const FUNCTIONS: [(&str, &str); 26] = [
    ("late", "long int late(int a, int b, int c, int d, int e, struct point p, int f)"),
    ("later", "long int later(int a, int b, int c, int d, int e, int f, int g, struct point p, int h)"),
    ("last", "int last(struct empty* e)"),
    ("nothing", "void nothing()"),
    ("many", "void many(const char* format, ...)"),
    ("add", "int add(int a, int b)"),
    ("narrow", "unsigned char narrow(unsigned char a)"),
    ("yes", "_Bool yes(long int a)"),
    ("letter", "char letter(char c)"),
    ("sletter", "signed char sletter(signed char c)"),
    ("wide_int", "long long unsigned int wide_int(long long unsigned int v)"),
    ("huge", "__int128 huge(__int128 v)"),
    ("make_point", "struct point make_point(int x, long int y)"),
    ("pick", "enum color pick(enum color c)"),
    ("compare", "enum sign compare(int a)"),
    ("large", "enum wide large(enum wide w)"),
    ("small", "enum tiny small(enum tiny t)"),
    ("three", "triple three(triple t)"),
    ("join", "union word join(union word w)"),
    ("walk", "struct node* walk(struct node* n)"),
    ("look", "const int* look(const char* const restrict s, volatile int* p)"),
    ("bits", "unsigned int bits(struct flags* f, struct iphdr* ip, struct outer* o, struct matrix* m)"),
    ("real", "double real(float f)"),
    ("choose", "int (int, int)* choose(int n)"),
    ("inner", "int inner(int a, long int b)"),
    ("call_inner", "int call_inner(int a)"),
];

const BODIES: [(&str, &str); 12] = [
    ("empty", "struct empty { 0 int[0] none; 0 int[1] one; } 4"),
    ("point", "struct point { 0 int x; 64 long int y; } 16"),
    ("color", "enum color { RED=0 GREEN=5 BLUE=6 } 4"),
    ("sign", "enum sign { LESS=-1 EQUAL=0 MORE=1 } 4"),
    ("wide", "enum wide { SMALL=1 HUGE_=20015998343868 } 8"),
    ("tiny", "enum tiny { T0=0 T200=200 } 1"),
    ("word", "union word { 0 unsigned int number; 0 u8[4] parts; } 4"),
    (
        "node",
        "struct node { 0 struct node* next; 64 struct opaque;* hidden; 128 int (struct node*, const char*)* visit; } 24",
    ),
    ("iphdr", "struct iphdr { 0:4 u8 ihl; 4:4 u8 version; 8 u8 tos; 16 short unsigned int len; } 4"),
    (
        "flags",
        "struct flags { 0:3 unsigned int a; 3:5 unsigned int b; 8:9 int c; 24 unsigned char d; 64:40 long unsigned int e; } 16",
    ),
    (
        "outer",
        "struct outer { 0 int kind; 64 union  { 0 long int number; 0 void* pointer; } 8 ; 128 struct  { 0 char c; } 1 named; \
         160 int[0] tail; } 24",
    ),
    ("matrix", "struct matrix { 0 short int[3][2] cells; } 12"),
];

/// GCC has other words for the integers than Clang.
fn as_clang(text: &str) -> String {
    let words = [
        ("long long unsigned int", "unsigned long long"),
        ("long unsigned int", "unsigned long"),
        ("short unsigned int", "unsigned short"),
        ("long int", "long"),
        ("short int", "short"),
        ("restrict const", "const restrict"),
    ];
    words.iter().fold(text.to_owned(), |text, (gcc, clang)| text.replace(gcc, clang))
}

#[test]
fn every_shape_is_read_back() {
    for compiler in COMPILERS {
        for flags in [
            &["-g", "-gdwarf-4", "-O0"][..],
            &["-g", "-gdwarf-5", "-O0"],
            &["-g", "-gdwarf-4", "-O2"],
            &["-g", "-gdwarf-5", "-O2"],
            &["-g", "-gdwarf-5", "-O2", "-gz=zlib"],
            // Bitfields the old way, counted from the highest bit.
            &["-g", "-gdwarf-3", "-gstrict-dwarf", "-O1"],
            &["-g", "-gdwarf-4", "-O2", "-gz=zlib", "-ffunction-sections"],
            &["-g", "-gdwarf-5", "-Os", "-fpatchable-function-entry=18,16"],
            &["-g3", "-gdwarf-5", "-O3", "-fno-omit-frame-pointer"],
        ] {
            let Some(object) = c(compiler, flags, SHAPES) else { continue };
            check_shapes(&Made::of(&object), &format!("{compiler} {flags:?}"));
        }
    }
}

fn check_shapes(made: &Made, case: &str) {
    made.with(|btf| {
        for (symbol, expected) in FUNCTIONS {
            let id =
                made.id(symbol).unwrap_or_else(|| panic!("{case} {symbol}: {:?}", made.left_out(symbol)));
            assert_eq!(as_clang(&function(&btf, id)), as_clang(expected), "{case}");
            // The return value of a local function may have been removed by a Clang that does not tell.
            let tags: Vec<_> = tags(&btf, id).into_iter().filter(|tag| tag != "fgraph:ret=none").collect();
            assert_eq!(tags, [""; 0], "{case} {symbol}");
        }
        for (called, expected) in BODIES {
            let text = as_clang(&body(&btf, definition(&btf, called)));
            assert_eq!(text, as_clang(expected), "{case}");
        }
    });
    assert_eq!(made.report.left_out, [], "{case}");
    assert_eq!((made.report.changed, made.report.as_written), (0, FUNCTIONS.len()), "{case}");
}

/// In an object file each type of a unit of its own is in a section of its own; linked, they are together.
#[test]
fn types_in_units_of_their_own_are_found() {
    for compiler in COMPILERS {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            let flags = [
                "-g",
                version,
                "-O2",
                "-w",
                "-fdebug-types-section",
                "-ffreestanding",
                "-nostdlib",
                "-static",
                "-Wl,-eadd",
            ];
            let Some((image, _)) = run(compiler, &flags, &[("source.c", SHAPES)]) else { continue };
            check_shapes(&Made::of(&image), &format!("{compiler} {flags:?}"));
        }
    }
}

/// A plain `char` has a sign on one machine and none on the other.
#[test]
fn the_sign_of_char_is_the_compilers() {
    let source = "char f(char c) { return c; }";
    for (flag, expected) in [("-fsigned-char", "char i8 0"), ("-funsigned-char", "char u8 0")] {
        for compiler in COMPILERS {
            let Some(object) = c(compiler, &["-g", flag], source) else { continue };
            let made = Made::of(&object);
            made.with(|btf| assert_eq!(body(&btf, definition(&btf, "char")), expected, "{compiler}"));
        }
    }
}

const LEFT: &str = r#"
struct same { int a; }; struct other { int left; };
static __attribute__((noinline)) int show(struct other *o) { return o->left * 7; }
int left(struct same *s, struct other *o) { return s->a + show(o); }
void _start(void) {}
"#;
const RIGHT: &str = r#"
struct same { int a; }; struct other { long right; long more; };
static __attribute__((noinline)) long show(long n, struct other *o) { return n * o->more; }
long right(struct same *s, struct other *o) { return s->a + show(s->a, o); }
"#;

#[test]
fn equal_names_are_never_mixed() {
    for compiler in COMPILERS {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            let flags = ["-g", version, "-O1", "-w", "-ffreestanding", "-nostdlib", "-static"];
            let Some((image, _)) = run(compiler, &flags, &[("left.c", LEFT), ("right.c", RIGHT)]) else {
                continue;
            };
            let made = Made::of(&image);
            made.with(|btf| {
                let shows = made.functions.iter().filter(|(symbol, _)| symbol == "show");
                let mut shows: Vec<_> = shows.map(|(_, id)| function(&btf, *id)).collect();
                shows.sort();
                // A name that has two meanings stays a name: which is meant is not known where only the name is.
                assert_eq!(
                    shows.iter().map(|text| as_clang(text)).collect::<Vec<_>>(),
                    ["int show(struct other;* o)", "long show(long n, struct other;* o)"]
                );
                let same = btf.by_name("same").count();
                assert_eq!(same, 1, "one struct in two units is one type");
                assert_eq!(body(&btf, definition(&btf, "same")), "struct same { 0 int a; } 4");
            });
        }
    }
}

const CLONES: &str = r#"
struct big { long a, b, c, d; };
extern int sink(int);
static __attribute__((noinline)) int part_of(struct big *big, int unused, int used) { return sink(big->b) + used * 3; }
static __attribute__((noinline)) long constant(long a, int mode) { return mode == 3 ? sink(a) + a : sink(a) * a; }
int both(struct big *big, int a) { return part_of(big, a, a + 1) + constant(a, 3) + part_of(big, 7, a) + constant(a + 4, 3); }
"#;

#[test]
fn changed_signatures_are_never_those_of_the_source() {
    for compiler in COMPILERS {
        let Some(object) = c(compiler, &["-g", "-O2"], CLONES) else { continue };
        let made = Made::of(&object);
        assert!(made.report.changed > 0 || compiler == "clang", "{compiler}: {}", made.report);
        let clones: Vec<_> = made.functions.iter().filter(|(symbol, _)| symbol.contains('.')).collect();
        if compiler == "clang" {
            made.with(|btf| {
                let places = |symbol| made.id(symbol).map(|id| tags(&btf, id)).unwrap_or_default();
                // Of these the parameter that nobody uses, and the one that is always 3, are removed.
                assert_eq!(
                    places("part_of"),
                    ["fgraph:ret=none", "0:fgraph:loc=r0", "1:fgraph:loc=none", "2:fgraph:loc=r1"]
                );
                assert_eq!(places("constant")[1..], ["0:fgraph:loc=r0", "1:fgraph:loc=none"]);
            });
        } else if clones.is_empty() {
            println!("skipped: {compiler} makes no clones of these");
        }
        made.with(|btf| {
            for (symbol, id) in clones {
                let tags = tags(&btf, *id);
                let count = function(&btf, *id).matches(',').count() + 1;
                let places = tags.iter().filter(|tag| tag.contains(":fgraph:loc=")).count();
                assert_eq!(places, count, "{symbol}: each parameter says where it is: {tags:?}");
                let lost = tags.iter().any(|tag| tag == "fgraph:ret=none");
                assert_eq!(lost, symbol.contains(".isra"), "{symbol}: {tags:?}");
                if symbol.starts_with("constant") {
                    assert!(tags.contains(&"0:fgraph:loc=r0".into()), "{symbol}: {tags:?}");
                    assert!(tags.contains(&"1:fgraph:loc=none".into()), "{symbol}: {tags:?}");
                }
            }
            assert_eq!(name(&btf, 0), "void");
        });
    }
}

#[test]
fn a_part_of_a_function_has_no_prototype() {
    let source = "extern void rare(void) __attribute__((cold)); extern int sink(int);
        int whole(int a) { if (__builtin_expect(a == 12345, 0)) { rare(); sink(a); rare(); } return a * 2; }";
    for compiler in COMPILERS {
        let Some(object) = c(compiler, &["-g", "-O2"], source) else { continue };
        let made = Made::of(&object);
        made.with(|btf| assert_eq!(function(&btf, made.id("whole").unwrap()), "int whole(int a)"));
        match made.left_out("whole.cold") {
            Some(reason) => assert_eq!(reason, "a part of another function"),
            None => println!("skipped: {compiler} splits no function"),
        }
    }
}

#[test]
fn assembly_has_no_types() {
    let source = ".text\n.globl f\n.type f, @function\nf: nop\n.size f, .-f\n";
    let Some((object, _)) = run("cc", &["-c", "-g"], &[("source.s", source)]) else { return };
    let made = Made::of(&object);
    assert_eq!(made.left_out("f").as_deref(), Some("no debug information"));
}

const PLUS: &str = r#"
namespace area {
struct Point { int x, y; int sum(int k) const; };
int Point::sum(int k) const { return x + y * k; }
namespace { int hidden(Point &p, Point &&q) { return p.x - q.y; } }
class Owner { public: Owner(const Owner &); ~Owner(); long value; };
__attribute__((noinline)) long own(Owner owner, int k) { return owner.value * k; }
Owner give(Owner &owner) { return owner; }
template <typename T> __attribute__((noinline)) T twice(T value) { return value + value; }
int use(Point &p) { return hidden(p, static_cast<Point &&>(p)) + twice(p.x) + twice((short)p.y); }
enum class Mode : unsigned char { Off, On = 200 };
Mode flip(Mode mode) { return mode == Mode::Off ? Mode::On : Mode::Off; }
}
"#;

#[test]
fn of_cpp_what_c_has_is_taken() {
    for compiler in ["c++", "clang++"] {
        let flags = ["-c", "-g", "-gdwarf-5", "-O1", "-ffreestanding", "-fno-exceptions", "-w"];
        let Some((object, _)) = run(compiler, &flags, &[("source.cc", PLUS)]) else { continue };
        let made = Made::of(&object);
        made.with(|btf| {
            for (symbol, expected) in [
                ("_ZNK4area5Point3sumEi", "int (const struct Point* this, int k)"),
                ("_ZN4area5twiceIiEET_S1_", "int (int value)"),
                ("_ZN4area5twiceIsEET_S1_", "short (short value)"),
                ("_ZN4area3useERNS_5PointE", "int (struct Point* p)"),
                ("_ZN4area4flipENS_4ModeE", "enum Mode (enum Mode mode)"),
            ] {
                let id = made
                    .id(symbol)
                    .unwrap_or_else(|| panic!("{compiler} {symbol}: {:?}", made.left_out(symbol)));
                let text = as_clang(&function(&btf, id)).replace(symbol, "");
                assert_eq!(text.replace("const this", "this"), expected, "{compiler}");
            }
            assert_eq!(body(&btf, definition(&btf, "Mode")), "enum Mode { Off=0 On=200 } 1");
        });
        // Clang leaves the definition to the unit that has the constructor.
        let (give, own) = ("_ZN4area4giveERNS_5OwnerE", "_ZN4area3ownENS_5OwnerEi");
        if made.left_out(give).is_some_and(|reason| reason.ends_with("Owner is only declared")) {
            continue;
        }
        let reason = "no form for a type: class that may be returned in memory";
        assert_eq!(made.left_out(give).as_deref(), Some(reason), "{compiler}");
        made.with(|btf| {
            let text = as_clang(&function(&btf, made.id(own).unwrap())).replace(own, "");
            assert_eq!(text, "long (struct Owner* owner, int k)", "{compiler}");
        });
    }
}
