// Table of the names that other trainers and launchers give to settings.
#pragma once

#include <span>
#include <string_view>

namespace dtrain::config {

/// Names in other programs that share one answer.
struct ForeignNames {
  std::string_view names;      ///< separated by spaces, each as ForeignName::name
  std::string_view key;        ///< as ForeignName::key
  std::string_view note = {};  ///< as ForeignName::note
};

[[nodiscard]] std::span<const ForeignNames> foreign_table() noexcept;

}  // namespace dtrain::config
