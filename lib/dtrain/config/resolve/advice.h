// Help and documentation generated from the schema, and suggestions for unknown flags, keys and
// arguments.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace CLI {
class App;
}

namespace dtrain::config {

/// Flags of other trainers and launchers that correspond to one setting.
struct ForeignFlags {
  std::string_view names;  ///< separated by spaces, in lower case, with '-' between words
  std::string_view key;    ///< of dtrain's setting; empty: there is none, see `note`
  std::string_view note = {};
};

/// The table in foreign_flags.cpp, without the names that model families add.
[[nodiscard]] std::span<const ForeignFlags> foreign_flags() noexcept;

/// A flag or key in lower case, without leading dashes, with '-' between words: "n-layer" for
/// "--N_Layer".
[[nodiscard]] std::string normalized_name(std::string_view name);

/// The row for a flag or key of another program ("--n_layer", "training.max_steps"), or null.
[[nodiscard]] const ForeignFlags* find_foreign_flag(std::string_view name);

/// The most similar known key: the nearest whole key, otherwise the key whose last part is nearest
/// ("model.width" for "width"); empty if none is close.
[[nodiscard]] std::string_view nearest_key(std::string_view key);

/// Suggestion that follows `unknown setting "KEY"`: the setting that corresponds to another
/// program's name, a hint that the key names a group, or the nearest key. Empty if there is none.
[[nodiscard]] std::string advice_for_key(std::string_view key, Command command);

/// Suggestion for an unexpected argument, such as "; it is a file: give it as --data book.txt".
/// Empty if there is none.
[[nodiscard]] std::string advice_for_word(const std::string& word, Command command);

/// Rejects arguments that an app of add_settings did not recognise; a no-op if there are none.
///
/// arguments: the whole command line.
/// Throws: Error{usage} naming the first unknown argument, a suggestion, and the other unknown flags.
void reject_unknown_arguments(const CLI::App& app, Command command,
                              const std::vector<std::string>& arguments);

// help.cpp

/// Help line of a setting: "learning rate after the warm-up (default: 0.003; at least 0)".
[[nodiscard]] std::string setting_summary(const Setting& setting);

/// Full help of the settings that `name` matches: a key ("train.lr"), its last part, a flag with or
/// without dashes, or a group ("model"). Also accepts another program's name for a setting. Empty
/// for unknown names. columns: line width.
///
/// Throws: Error{usage} with advice if another program's name has no equivalent here.
[[nodiscard]] std::optional<std::string> setting_help(std::string_view name, std::size_t columns);

/// The text of docs/guide/settings.md: all settings, one table per group.
[[nodiscard]] std::string settings_markdown();

}  // namespace dtrain::config
