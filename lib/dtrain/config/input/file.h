// Configuration files: JSON with comments, nested objects or dotted keys, `extends`
// (docs/guide/configuration.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// A configuration as the user asked for it, before anything is resolved.
struct Loaded {
  Config config;
  /// Keys of files that the command does not use, or only older builds did. Of config.json only the
  /// one of lost_rounding.
  std::vector<std::string> unused = {};
  std::vector<const Setting*> given = {};  ///< by files and flags, some perhaps several times
  /// "--val-fraction 0.1 replaces --val-data FILE": settings of lower layers that exclude those of
  /// higher ones (rivals.h).
  std::vector<std::string> replaced = {};

  /// True if a file or flag gives this setting.
  [[nodiscard]] bool gives(std::string_view key) const;
  /// Records the settings of a layer, which `config` has already; resets what they exclude of
  /// `below`, the settings before it.
  void add_layer(const Config& below, const std::vector<const Setting*>& layer);
};

/// Applies the file at `path` over `loaded`, after the files that it extends, each a layer of its
/// own. Skips what a run has added to its config.json (saved_run.h).
///
/// Throws: Error{usage} naming the file and key: unreadable, not JSON, unknown or repeated keys,
///         wrong values, an `extends` cycle.
void apply_file(const std::string& path, Command command, Loaded& loaded);

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
