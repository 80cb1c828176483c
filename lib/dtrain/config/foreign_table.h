// The names that other trainers and launchers give to settings, in rows.
#pragma once

#include <span>
#include <string_view>

namespace dtrain::config {

/// The names of other programs that have one answer.
struct ForeignNames {
  std::string_view names;      ///< between spaces, each as ForeignName::name
  std::string_view key;        ///< as ForeignName::key
  std::string_view note = {};  ///< as ForeignName::note
};

[[nodiscard]] std::span<const ForeignNames> foreign_table() noexcept;

}  // namespace dtrain::config
