// Expands the lists of host names that SLURM writes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// The hosts of a list such as "a[01-03,7],b5" or "rack[1-2]n[1-4]-ib", in its order; a number has
/// at least as many digits as the lower end of its range.
///
/// Returns: nothing for a list that makes no sense, is empty, or has more than 65,536 hosts or a
///          name of more than 255 characters.
[[nodiscard]] std::optional<std::vector<std::string>> expand_host_list(std::string_view list);

}  // namespace dtrain::base
