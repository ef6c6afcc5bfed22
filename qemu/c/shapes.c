/* Functions of C that take and return values of every shape. The boot tests compare what the tracer shows of their calls with what
   is written there.

   Compiled like the kernel: sleds as its own, no vector registers. Each function does something that no other one does. */

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long size_t;
typedef long ssize_t;

enum state { STATE_OFF, STATE_ON, STATE_STUCK };
enum flags { FLAG_READ = 1, FLAG_WRITE = 2, FLAG_EXEC = 4 };
enum wide { WIDE_LOW = 1, WIDE_TOP = 0x8000000000000000 };

struct pair { size_t start, end; };
struct small { int a; u8 b; };
struct twelve { u32 a, b, c; };
struct large { size_t a, b, c; };
struct named { char name[6]; u16 kind; };
struct bits { u32 low : 3, mid : 10; int sign : 4; enum state state : 2; };
struct outer { struct small inner; union { u32 n; u8 byte; }; };
struct hidden;
union number { u32 wide; u8 narrow; };

#define KEEP(x) __asm__ volatile("" : "+r"(x))

void c_nothing(u32 n) { KEEP(n); }
u8 c_narrow(size_t n) { KEEP(n); return n; }
short c_short(int n) { KEEP(n); return -n; }
s8 c_signed(s8 n) { int m = n; KEEP(m); return m - 1; }
int c_error(int n) { KEEP(n); return n - 12; }
ssize_t c_long(ssize_t n) { KEEP(n); return n - 22; }
u32 c_unsigned(u32 n) { KEEP(n); return n - 2; }
_Bool c_bool(_Bool b) { int n = b; KEEP(n); return n == 0; }
char c_char(char c) { int n = c; KEEP(n); return n + 1; }
enum state c_state(enum state state) { int n = state; KEEP(n); return n + 1; }
enum flags c_flags(enum flags flags) { int n = flags; KEEP(n); return n | FLAG_EXEC; }
enum wide c_wide_enum(enum wide wide) { size_t n = wide; KEEP(n); return n ^ 0x8000000000000001; }
void *c_pointer(void *p) { KEEP(p); return p; }
void *c_pointer_error(long errno) { KEEP(errno); return (void *)-errno; }
const char *c_text(const char *text) { KEEP(text); return text + 1; }
struct hidden *c_hidden(struct hidden *hidden) { size_t n = (size_t)hidden; KEEP(n); return (struct hidden *)(n + 16); }
void (*c_function(void (*function)(u32)))(u32) { KEEP(function); return function; }
unsigned __int128 c_int128(u8 skipped, __int128 n) { KEEP(skipped); return n + skipped; }
struct pair c_pair(struct pair p) { KEEP(p.start); return (struct pair){ p.end, p.start + 1 }; }
struct small c_small(struct small s) { KEEP(s.a); return (struct small){ s.a - 1, s.b + 1 }; }
struct twelve c_twelve(struct twelve t) { KEEP(t.a); return (struct twelve){ t.c, t.b, t.a + 2 }; }
struct large c_large(struct large l, int n) { KEEP(n); return (struct large){ l.c, l.b, l.a + n }; }
struct named c_named(struct named n) { KEEP(n.kind); n.kind += 5; return n; }
struct bits c_bits(struct bits b) { int n = b.mid; KEEP(n); b.mid = n + 1; return b; }
struct outer c_outer(struct outer o) { KEEP(o.n); o.n += 6; return o; }
union number c_union(union number u) { KEEP(u.wide); u.wide += 7; return u; }
int c_variadic(const char *format, ...) { KEEP(format); return *format; }
size_t c_many(u8 a, u16 b, struct pair p, u32 c, struct large l, int d, struct pair q, char e)
{
	KEEP(d);
	return a + b + p.start + p.end + c + l.a + l.c + d + q.start + q.end + e;
}
struct large c_hidden_pointer(u8 a, struct pair p, u32 b)
{
	KEEP(b);
	return (struct large){ a, p.start, b };
}
__attribute__((noinline)) static int c_static(int n) { KEEP(n); return n - 8; }
int (*const c_static_address)(int) = c_static;
