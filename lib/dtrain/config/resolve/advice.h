// What users read about settings: help and documentation, written from the schema, and advice about
// flags, keys and words that dtrain does not know.
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

/// Names of other trainers and launchers for what one of our settings does.
struct ForeignNames {
  std::string_view names;  ///< separated by spaces, in small letters, with '-' between words
  std::string_view key;    ///< of our setting; empty: there is none, and `note` says what to do
  std::string_view note = {};
};

/// The table (foreign_table.cpp), without the names that model families bring.
[[nodiscard]] std::span<const ForeignNames> foreign_table() noexcept;

/// A flag or key without dashes in front, in small letters, with '-' between words: "--N_Layer"
/// gives "n-layer".
[[nodiscard]] std::string normal_form(std::string_view name);

/// The row for a flag or key of another program ("--n_layer", "training.max_steps"), or null.
[[nodiscard]] const ForeignNames* find_foreign(std::string_view name);

/// The key of the setting that `key` may have meant: the nearest whole key, else the one whose last
/// part is nearest ("width" means "model.width"); empty when none is close.
[[nodiscard]] std::string_view nearest_key(std::string_view key);

/// Advice after `unknown setting "KEY"`: the setting that other programs call so, that the key
/// names a group of settings, or the nearest key. Empty where nothing is near.
[[nodiscard]] std::string advice_for_key(std::string_view key, Command command);

/// Advice on a word where none belongs: "; it is a file: give it as --data book.txt" and the
/// like; empty where nothing is known of it.
[[nodiscard]] std::string advice_for_word(const std::string& word, Command command);

/// Refuses what an app of add_settings has not parsed; a no-op if there is nothing.
///
/// arguments: all that were parsed.
/// Throws: Error{usage} that names the first unknown word, what was probably meant, and the other
///         unknown flags.
void refuse_unknown(const CLI::App& app, Command command,
                    const std::vector<std::string>& arguments);

// help.cpp

/// "learning rate after the warm-up (default 0.003; at least 0)".
[[nodiscard]] std::string described(const Setting& setting);

/// Full help of the settings that `name` matches: a key ("train.lr"), its last part, a flag, with
/// or without dashes, or a group ("model"). Translates another program's name for a setting. Empty
/// for any other name. columns: of a line.
///
/// Throws: Error{usage} with advice for another program's name that has no counterpart here.
[[nodiscard]] std::optional<std::string> setting_help(std::string_view name, std::size_t columns);

/// docs/guide/settings.md: every setting in one table a group.
[[nodiscard]] std::string settings_markdown();

}  // namespace dtrain::config
