//! Where a metric is declared: once, beside the field that counts it.
//!
//! [`declare_metrics!`](crate::declare_metrics) declares a struct of numbers together with the names, kinds, labels
//! and help texts under which they are exported. A field cannot be added without saying which metric it belongs to, so
//! what is counted is exported. An exporter takes the whole table [`METRICS`](Metric), and the operators' documentation
//! is checked against the same table.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a metric's value moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only grows; the metric's name ends in `_total`.
    Counter,
    /// The value goes up and down.
    Gauge,
}

/// Takes one value and its label values, in the order of [`Metric::labels`].
pub type Each<'a> = dyn FnMut(&[&str], u64) + 'a;

/// One exported metric of a struct `S`.
pub struct Metric<S: ?Sized> {
    /// The whole name: `windfall_`, what it is, its unit, and `_total` if it is a counter.
    pub name: &'static str,
    /// What it counts, in one sentence.
    pub help: &'static str,
    /// How its value moves.
    pub kind: MetricKind,
    /// The names of its own labels. An exporter that reads several `S` puts its labels before them.
    pub labels: &'static [&'static str],
    /// Reads its values.
    pub read: fn(&S, &mut Each<'_>),
}

/// What a field of a declared struct can be: one number, or several under one label.
pub trait Readable {
    /// Hands over its values. `value` is the label value that the declaration gives to the field, if any.
    fn read(&self, value: &[&str], each: &mut Each<'_>);
}

/// A number of a snapshot, and the atomic number that it is read from.
pub trait Counted: Sized {
    /// The atomic type that is counted up.
    type Counter: Default;

    /// Reads it.
    fn load(counter: &Self::Counter) -> Self;
}

impl Readable for u64 {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, *self);
    }
}

impl Readable for usize {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, u64::try_from(*self).unwrap_or(u64::MAX));
    }
}

impl Readable for bool {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        each(value, u64::from(*self));
    }
}

/// `None` exports no value: there is nothing to show now.
impl<T: Readable> Readable for Option<T> {
    fn read(&self, value: &[&str], each: &mut Each<'_>) {
        if let Some(known) = self {
            known.read(value, each);
        }
    }
}

impl Counted for u64 {
    type Counter = AtomicU64;

    fn load(counter: &AtomicU64) -> Self {
        counter.load(Ordering::Relaxed)
    }
}

impl<const N: usize> Counted for [u64; N]
where
    [AtomicU64; N]: Default,
{
    type Counter = [AtomicU64; N];

    fn load(counters: &[AtomicU64; N]) -> Self {
        std::array::from_fn(|at| u64::load(&counters[at]))
    }
}

/// Declares a struct of numbers and, from the same lines, its table `METRICS` of exported metrics.
///
/// A group is a metric: its kind, its name, its labels (`["a"]["b"]`) if it has any, its help text, and the fields that
/// it is read from. With a label, each field says its label value (`as "paid"`); a field with several values, or with a
/// label value that is known at run time alone, names a function that reads it (`= read_causes`). What stands behind
/// `..` is not exported.
///
/// `counted by Counters` also declares the atomic numbers that the struct is a snapshot of, with `read()`.
///
/// ```
/// use std::sync::atomic::Ordering::Relaxed;
///
/// windfall_contract::declare_metrics! {
///     /// What a till has counted.
///     #[derive(Debug, Clone, Copy, Default)]
///     pub struct TillStats counted by TillCounters {
///         counter "till_sales_total" ["answer"] "Sales, by answer." {
///             /// Sales that were paid.
///             pub paid: u64 as "paid",
///             /// Sales that were refused.
///             pub refused: u64 as "refused",
///         }
///         counter "till_openings_total" "Times that the till was opened." {
///             /// Times that the till was opened.
///             pub opened: u64,
///         }
///     }
/// }
///
/// let counters = TillCounters::default();
/// counters.refused.fetch_add(2, Relaxed);
/// let mut seen = Vec::new();
/// for metric in TillStats::METRICS {
///     (metric.read)(&counters.read(), &mut |labels, value| seen.push(format!("{} {labels:?} {value}", metric.name)));
/// }
/// assert_eq!(
///     seen,
///     [r#"till_sales_total ["paid"] 0"#, r#"till_sales_total ["refused"] 2"#, "till_openings_total [] 0"]
/// );
/// ```
#[macro_export]
macro_rules! declare_metrics {
    (@kind counter) => { $crate::metrics::MetricKind::Counter };
    (@kind gauge) => { $crate::metrics::MetricKind::Gauge };
    (@read $field:expr, $each:ident) => { $crate::metrics::Readable::read($field, &[], $each) };
    (@read $field:expr, $each:ident, as $value:literal) => {
        $crate::metrics::Readable::read($field, &[$value], $each)
    };
    (@read $field:expr, $each:ident, = $reader:expr) => { $reader($field, $each) };
    (@counters $stats:ident $counters:ident {
        $( $kind:ident $name:literal $([$label:literal])* $help:literal { $(
            $(#[$doc:meta])* $vis:vis $field:ident : $ty:ty $(as $value:literal)? $(= $reader:expr)?
        ),+ $(,)? } )*
    }) => {
        #[derive(Debug, Default)]
        pub(crate) struct $counters { $($( $field: <$ty as $crate::metrics::Counted>::Counter, )+)* }

        impl $counters {
            pub(crate) fn read(&self) -> $stats {
                $stats { $($( $field: $crate::metrics::Counted::load(&self.$field), )+)* }
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $stats:ident counted by $counters:ident { $($body:tt)* }) => {
        $crate::declare_metrics! { $(#[$meta])* $vis struct $stats { $($body)* } }
        $crate::declare_metrics! { @counters $stats $counters { $($body)* } }
    };
    ($(#[$meta:meta])* $vis:vis struct $stats:ident {
        $( $kind:ident $name:literal $([$label:literal])* $help:literal { $(
            $(#[$doc:meta])* $fvis:vis $field:ident : $ty:ty $(as $value:literal)? $(= $reader:expr)?
        ),+ $(,)? } )*
        $( .. { $( $(#[$odoc:meta])* $ovis:vis $other:ident : $oty:ty ),+ $(,)? } )?
    }) => {
        $(#[$meta])*
        $vis struct $stats {
            $($( $(#[$doc])* $fvis $field: $ty, )+)*
            $($( $(#[$odoc])* $ovis $other: $oty, )+)?
        }

        impl $stats {
            /// The exported metrics of this struct.
            $vis const METRICS: &'static [$crate::metrics::Metric<Self>] = &[$(
                $crate::metrics::Metric {
                    name: $name,
                    help: $help,
                    kind: $crate::declare_metrics!(@kind $kind),
                    labels: &[$($label),*],
                    read: |stats, each| { $(
                        $crate::declare_metrics!(@read &stats.$field, each $(, as $value)? $(, = $reader)?);
                    )+ },
                }
            ),*];
        }
    };
}
