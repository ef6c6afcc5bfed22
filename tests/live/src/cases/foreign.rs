//! Functions that a C compiler made, with and without landing pads, in the same table of sites.

#[cfg(not(live_c))]
pub fn functions_of_a_c_compiler_are_traced() {
    crate::runner::skip(concat!("no C compiler that can do it: ", env!("LIVE_NO_C")));
}

#[cfg(live_c)]
pub(crate) use compiled::functions_of_a_c_compiler_are_traced;

#[cfg(live_c)]
mod compiled {
    use std::hint::black_box;

    use fgraph::{Filter, FuncAddr, FuncSet, OpsFlags};

    use crate::log::{self, Kind};
    use crate::machine;
    use crate::process::{self, Thread};
    use crate::users::{User, addr, assert_settled};

    macro_rules! functions {
        ($($name:ident)*) => {
            unsafe extern "C" {
                $(fn $name();)*
            }
            // By name.
            const FUNCTIONS: &[(&str, unsafe extern "C" fn())] = &[$((stringify!($name), $name)),*];
        };
    }

    functions! {
        plain_six plain_variadic plain_large plain_extended plain_nesting
        landing_six landing_variadic landing_large landing_extended landing_nesting
    }

    unsafe extern "C" {
        safe fn plain_all(n: i64) -> f64;
        safe fn landing_all(n: i64) -> f64;
    }

    /// Every C function: those that are named, and those that are not, for these lie between them.
    fn c_functions() -> Filter {
        let named =
            FUNCTIONS.iter().map(|(_, func)| addr!(*func)).chain([addr!(plain_all), addr!(landing_all)]);
        let (mut first, mut last) = (FuncAddr::new(usize::MAX), FuncAddr::new(0));
        for func in named {
            (first, last) = (first.min(func), last.max(func));
        }
        let between: Vec<_> =
            process::functions().into_iter().filter(|func| (first..=last).contains(func)).collect();
        Filter { include: FuncSet::Some(Box::leak(between.into_boxed_slice())), exclude: FuncSet::None }
    }

    pub fn functions_of_a_c_compiler_are_traced() {
        let landing_pad = |func: FuncAddr| {
            machine::is_landing_pad(&process::snapshot()[func.get() - process::text().start..])
        };
        for (name, func) in FUNCTIONS {
            assert_eq!(
                landing_pad(addr!(*func)),
                cfg!(landing_pads) && name.starts_with("landing_"),
                "{name}"
            );
        }
        process::init().expect("the sites are good");
        for (name, func) in FUNCTIONS {
            assert!(process::functions().contains(&addr!(*func)), "{name} has no site");
        }
        let call = || [plain_all(black_box(3)), landing_all(black_box(3))];
        let right = call();
        assert_eq!(right[0], right[1]);
        for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
            let op = User::op(log::op, flags, c_functions());
            let graph = User::noting(c_functions());
            assert_eq!(call(), right);
            drop((graph, op));
            let events = log::take();
            for (name, func) in FUNCTIONS {
                let kinds: Vec<_> = events
                    .iter()
                    .filter(|event| event.func == addr!(*func))
                    .map(|event| event.kind)
                    .collect();
                assert_eq!(kinds, [Kind::Op, Kind::Entry, Kind::Return], "{name}");
            }
            let six = events.iter().find(|event| event.func == addr!(landing_six)).expect("it was told");
            assert_eq!(six.values, [3, 4, 5, 6, 7, 8]);
        }
        assert_settled(Thread::current().expect("this thread is traced"));
    }
}
