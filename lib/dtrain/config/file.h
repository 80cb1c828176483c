// Configuration files: JSON with comments, nested objects or dotted keys, `extends`
// (docs/configuration.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The settings that a file and those that it extends set.
struct FileSettings {
  std::vector<const Setting*> given;
  /// Keys that the command does not use, or only older builds did. Of config.json only the one of
  /// lost_rounding.
  std::vector<std::string> unused;
  std::vector<std::string> replaced = {};  ///< settings of extended files that a file overrides
};

/// Applies the file at `path` over `config`, after the files that it extends. Resets settings of
/// those files that its own settings exclude (rivals.h). Skips what a run has added to its
/// config.json (saved_run.h).
///
/// Throws: Error{usage} naming the file and key: unreadable, not JSON, unknown or repeated keys,
///         wrong values, an `extends` cycle.
[[nodiscard]] FileSettings apply_file(const std::string& path, Command command, Config& config);

/// The value of a key at the top of a file as JSON text; empty if the file lacks the key.
///
/// Throws: Error{usage} as apply_file.
[[nodiscard]] std::string value_in_file(const std::string& path, std::string_view key);

/// The text of a file that holds one JSON object, comments removed; `flag` names it in messages.
///
/// Throws: Error{usage} as apply_file: unreadable, not JSON, repeated keys.
[[nodiscard]] std::string read_object_text(const std::string& path, std::string_view flag);

/// Applies one JSON object of settings that a run has saved, nested or dotted; `origin` names it in
/// messages. As apply_file, without `extends`; settings that only older builds had are passed over.
void apply_text(std::string_view text, const std::string& origin, Config& config);

/// The setting of older builds in such an object without which a run's sums are rounded otherwise:
/// "layout.tied_reshard per-use". Empty if there is none.
[[nodiscard]] std::string lost_rounding(std::string_view text, const std::string& origin);

}  // namespace dtrain::config
