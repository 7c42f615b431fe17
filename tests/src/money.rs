//! Which failure says that money is lost or paid twice.

/// What such a failure prints: `tools/run-tests` knows it, and no such test is run again.
pub const MONEY: &str = "MONEY:";

/// Assertions are about money as long as it lives: one that fails says so.
///
/// ```
/// use windfall_tests::AboutMoney;
///
/// let (sent, credited) = (3, 3);
/// let _about = AboutMoney;
/// assert_eq!(sent, credited);
/// ```
#[derive(Debug)]
pub struct AboutMoney;

impl Drop for AboutMoney {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{MONEY} an assertion about what was credited or paid has failed");
        }
    }
}
