// Configuration files: JSON with comments, nested objects or dotted keys, `extends`
// (docs/guide/configuration.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// The settings given by files and flags, before resolve().
struct LoadedSettings {
  Config config;
  /// Keys in files that the command does not use, or that only older builds knew. For config.json,
  /// only the key that removed_rounding_setting returns.
  std::vector<std::string> unused = {};
  std::vector<const Setting*> given = {};  ///< by files and flags; may contain duplicates
  /// "--val-fraction 0.1 replaces --val-data FILE": inherited settings that were reset
  /// (conflicts.h).
  std::vector<std::string> replaced = {};

  /// True if a file or flag gives this setting.
  [[nodiscard]] bool gives(std::string_view key) const;
  /// Records the settings of a layer that is already applied to `config`, and resets conflicting
  /// settings of `below`, the configuration before the layer.
  void add_layer(const Config& below, const std::vector<const Setting*>& layer);
};

/// Applies the files that the file at `path` extends, then the file itself, each as one layer. Skips
/// the sections that a run adds to its config.json (saved_run.h).
///
/// Throws: Error{usage} naming the file and key: unreadable, not JSON, unknown or repeated keys,
///         wrong values, an `extends` cycle.
void apply_file(const std::string& path, Command command, LoadedSettings& loaded);

/// The JSON text of a top-level key in a file; empty if the file lacks the key.
///
/// Throws: Error{usage} as apply_file.
[[nodiscard]] std::string json_value_in_file(const std::string& path, std::string_view key);

/// The text of a file that contains one JSON object, comments removed. flag: for messages.
///
/// Throws: Error{usage} as apply_file: unreadable, not JSON, repeated keys.
[[nodiscard]] std::string read_object_text(const std::string& path, std::string_view flag);

/// Applies a JSON object of settings saved by a run, nested or dotted. Unlike apply_file it supports
/// no `extends`, and ignores settings that only older builds knew. origin: for messages.
void apply_saved_settings(std::string_view text, const std::string& origin, Config& config);

/// Returns a setting in such an object that this build no longer has and that affected the rounding
/// of sums, so that a resumed run changes bits: "layout.tied_reshard per-use". Empty if there is
/// none.
[[nodiscard]] std::string removed_rounding_setting(std::string_view text,
                                                   const std::string& origin);

}  // namespace dtrain::config
