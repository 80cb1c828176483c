// Names that other trainers and launchers give to what dtrain's settings do.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// Another program's name for a setting of ours.
struct ForeignName {
  std::string_view
      name;  ///< in small letters, with '-' between words: "gradient-accumulation-steps"
  std::string_view key;  ///< of our setting; empty: there is none, and `note` says what to do
  std::string_view note = {};
};

/// The entry for a flag or key of another program ("--n_layer", "training.max_steps"), or null.
[[nodiscard]] const ForeignName* find_foreign(std::string_view name);

/// ": use --levels" for an unknown flag, ": use model.levels" for an unknown key,
/// each with the entry's note; nothing for names that no other program is known to use, and for
/// settings that `command` does not have.
enum class NameKind { flag, key };
[[nodiscard]] std::string foreign_advice(std::string_view name, NameKind kind, Command command);

/// The key that a user of `command` means by that of another command's setting: what names a run or
/// weights while training is --from to generate. The key itself where nothing else is meant.
[[nodiscard]] std::string_view key_meant_in(Command command, std::string_view key);

/// The whole table, with the names that model families bring.
[[nodiscard]] std::span<const ForeignName> foreign_names() noexcept;

}  // namespace dtrain::config
