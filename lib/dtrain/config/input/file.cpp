#include "dtrain/config/input/file.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/conflicts.h"
#include "dtrain/config/input/object_file.h"
#include "dtrain/config/resolve/advice.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kExtends = "extends";
// A setting that only older builds knew.
struct RemovedSetting {
  std::string_view key;
  // True if it is ignored only in configurations saved by a run.
  bool is_saved_only = false;
};

// A user's file with eval_batches is rejected: ignoring it would change the amount of validation.
constexpr RemovedSetting kRemoved[] = {
    {"report.eval_batches", /*is_saved_only=*/true}, {"layout.tied_reshard"}, {"verify.tolerance"}};

struct Entry {
  std::string key;  // dotted
  Json value;
};

// Where a JSON object of settings comes from.
struct Source {
  std::string origin;
  Command command;
  bool is_saved;  // by a run, not written by a user
};

bool is_removed(const Entry& entry, bool is_saved) {
  const auto* found = std::ranges::find(kRemoved, entry.key, &RemovedSetting::key);
  return found != std::end(kRemoved) && (is_saved || !found->is_saved_only);
}

// True for a removed setting that changed the order in which gradients were added.
bool changes_rounding(const Entry& entry) {
  return entry.key == "layout.tied_reshard" && entry.value == "per-use";
}

// Empty objects become entries, so that unknown groups are detected.
void flatten(const Json& object, const std::string& prefix, std::vector<Entry>& entries) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object() && !value.empty()) {
      flatten(value, prefix + key + '.', entries);
    } else {
      entries.push_back({prefix + key, value});
    }
  }
}

bool is_empty_group(const Entry& entry) {
  const std::string prefix = entry.key + '.';
  return entry.value.is_object() && std::ranges::any_of(settings(), [&](const Setting& setting) {
           return setting.key.starts_with(prefix);
         });
}

// Returns the settings that were set. removed: receives ignored settings of older builds.
std::vector<const Setting*> apply_entries(const Json& object, const Source& source, Config& config,
                                          std::vector<Entry>& removed) {
  std::vector<Entry> entries;
  flatten(object, "", entries);
  std::vector<const Setting*> set;
  for (const Entry& entry : entries) {
    if (is_removed(entry, source.is_saved)) {
      removed.push_back(entry);
      continue;
    }
    if (is_empty_group(entry)) continue;
    const Setting* setting = find_key(entry.key);
    if (setting == nullptr) {
      fail(ErrorKind::usage, "{}: unknown setting \"{}\"{}", source.origin,
           base::printable(entry.key), advice_for_key(entry.key, source.command));
    }
    if (std::ranges::find(set, setting) != set.end()) {
      fail(ErrorKind::usage, "{}: the key \"{}\" appears twice", source.origin, entry.key);
    }
    assign_json(*setting, entry.value, fmt::format("{}: {}", source.origin, entry.key), config);
    set.push_back(setting);
  }
  return set;
}

// The paths that the file extends, in order.
std::vector<std::string> extended_paths(const Json& value, const std::string& path) {
  const auto is_text = [](const Json& item) { return item.is_string(); };
  const bool list = value.is_array() && std::ranges::all_of(value, is_text);
  if (!value.is_string() && !list) {
    fail(ErrorKind::usage, "{}: extends: found {}, but it must be a path or a list of paths", path,
         value.dump(-1, ' ', true));
  }
  const auto folder = std::filesystem::path(path).parent_path();
  std::vector<std::string> paths;
  for (const Json& item : value.is_string() ? Json::array({value}) : value) {
    paths.push_back((folder / item.get_ref<const std::string&>()).lexically_normal().string());
  }
  return paths;
}

// Removes sections that are not settings. Returns true if a run has written the object.
bool drop_sections(Json& object) {
  const bool is_saved = object.contains(kResolvedKey);
  object.erase(std::string(kResolvedKey));
  object.erase(std::string(kProvenanceKey));
  object.erase(std::string(kSkippedCheckpointsKey));
  return is_saved;
}

class FileReader {
 public:
  FileReader(Command command, LoadedSettings& loaded) : command_(command), loaded_(loaded) {}

  void read(const std::string& path, std::string_view named_by) {
    std::error_code unresolvable;  // reported by read_text
    const auto identity = std::filesystem::weakly_canonical(path, unresolvable).string();
    if (std::ranges::find(open_, identity) != open_.end()) {
      fail(ErrorKind::usage, "{}: circular extends: {} extends itself", named_by, path);
    }
    open_.push_back(identity);
    Json object = parse_object(read_text(path, named_by), path);
    if (const auto extends = object.find(kExtends); extends != object.end()) {
      const Json value = *extends;
      object.erase(extends);
      for (const std::string& base : extended_paths(value, path)) {
        read(base, path + ": extends");
      }
    }
    const bool is_saved = drop_sections(object);
    const Config below = loaded_.config;
    std::vector<Entry> removed;
    const Source source{.origin = path, .command = command_, .is_saved = is_saved};
    const std::vector<const Setting*> given =
        apply_entries(object, source, loaded_.config, removed);
    for (const Entry& entry : removed) {
      if (!is_saved || changes_rounding(entry)) loaded_.unused.push_back(entry.key);
    }
    loaded_.add_layer(below, given);
    for (const Setting* setting : given) {
      if (!is_saved && !setting->is_for(command_)) loaded_.unused.emplace_back(setting->key);
    }
    open_.pop_back();
  }

 private:
  Command command_;
  LoadedSettings& loaded_;
  std::vector<std::string> open_;  // files being read, outermost first
};

}  // namespace

bool LoadedSettings::gives(std::string_view key) const {
  return std::ranges::any_of(given, [&](const Setting* setting) { return setting->key == key; });
}

void LoadedSettings::add_layer(const Config& below, const std::vector<const Setting*>& layer) {
  for (std::string& line : reset_conflicts(below, layer, config))
    replaced.push_back(std::move(line));
  given.insert(given.end(), layer.begin(), layer.end());
}

void apply_file(const std::string& path, Command command, LoadedSettings& loaded) {
  FileReader(command, loaded).read(path, "--config");
}

std::string read_object_text(const std::string& path, std::string_view flag) {
  return parse_object(read_text(path, flag), path).dump();
}

std::string json_value_in_file(const std::string& path, std::string_view key) {
  const Json object = parse_object(read_text(path, "--config"), path);
  const auto found = object.find(key);
  return found == object.end() ? std::string() : found->dump();
}

void apply_saved_settings(std::string_view text, const std::string& origin, Config& config) {
  Json object = parse_object(text, origin);
  drop_sections(object);
  std::vector<Entry> removed;
  apply_entries(object, {.origin = origin, .command = Command::train, .is_saved = true}, config,
                removed);
}

std::string removed_rounding_setting(std::string_view text, const std::string& origin) {
  std::vector<Entry> entries;
  flatten(parse_object(text, origin), "", entries);
  const auto found = std::ranges::find_if(entries, changes_rounding);
  if (found == entries.end()) return {};
  return fmt::format("{} {}", found->key, found->value.get_ref<const std::string&>());
}

}  // namespace dtrain::config
