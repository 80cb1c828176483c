// What the ranks of one machine do together before they can communicate.
#pragma once

namespace dtrain::app {

/// As base::report_current_exception, but the ranks of a machine print an error that all of them
/// meet once: the first of them prints at once, the others wait for the launcher to end them and
/// print only if it does not, for then the error is theirs alone. Call inside a catch block.
[[nodiscard]] int report_on_one_rank();

}  // namespace dtrain::app
