#include "dtrain/config/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/config/advice.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/rivals.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kExtends = "extends";
constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 16;
// A setting of older builds.
struct RemovedSetting {
  std::string_view key;
  // True if it is unknown except in what a run has saved.
  bool is_saved_only = false;
};

// A file with eval_batches asks for another amount of validation than it would get.
constexpr RemovedSetting kRemoved[] = {
    {"report.eval_batches", /*is_saved_only=*/true}, {"layout.tied_reshard"}, {"verify.tolerance"}};

struct Entry {
  std::string key;  // dotted
  Json value;
};

// An object of settings.
struct Source {
  std::string origin;
  Command command;
  bool is_saved;  // by a run
};

bool is_removed(const Entry& entry, bool is_saved) {
  const auto* found = std::ranges::find(kRemoved, entry.key, &RemovedSetting::key);
  return found != std::end(kRemoved) && (is_saved || !found->is_saved_only);
}

// True for a removed setting with which gradients were added in another order.
bool changes_rounding(const Entry& entry) {
  return entry.key == "layout.tied_reshard" && entry.value == "per-use";
}

std::string read_text(const std::string& path, std::string_view named_by) {
  const auto refuse = [&](std::string_view why, int reason = 0) {
    base::fail_on_storage(
        ErrorKind::usage, reason,
        fmt::format("cannot read the configuration file {} ({}): {}", path, named_by, why));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) refuse("it is a folder");
  // Each rank reads the file for itself: of a pipe only the first would get anything, and a FIFO
  // without a writer would be waited for without end.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    refuse(
        "it is not a regular file; write the text to one (a pipe such as <(...) can be read once, "
        "and every rank reads the configuration)");
  }
  std::string text;
  const int result = base::with_patience(path, [&] {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) return -1;
    text.assign(kMaxFileBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    return file.bad() ? -1 : 0;
  });
  if (result != 0) refuse(std::strerror(errno), errno);
  if (text.size() > kMaxFileBytes) refuse("it is larger than 1 MiB");
  return text;
}

// The likely format of a file's text that is no JSON: "YAML", "UTF-16 text"; empty where nothing is
// recognised.
std::string_view foreign_format(const std::string& path, std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {".yaml", "YAML"}, {".yml", "YAML"},        {".toml", "TOML"},
      {".py", "Python"}, {".ini", "an INI file"}, {".safetensors", "a model"}};
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16 text";
  for (const auto& [ending, format] : kFormats) {
    if (path.ends_with(ending)) return format;
  }
  return {};
}

// The part of nlohmann's message that speaks of the text: without its exception id.
std::string parser_message(const std::exception& error) {
  const std::string message = error.what();
  const std::size_t end_of_id = message.find("] ");
  return end_of_id == std::string::npos ? message : message.substr(end_of_id + 2);
}

[[noreturn]] void refuse_text(std::string_view text, const std::string& origin,
                              const Json::exception& error) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    fail(ErrorKind::usage, "{}: it is empty where an object {{...}} is needed", origin);
  }
  if (origin.ends_with(".txt")) {
    fail(ErrorKind::usage, "{}: not valid JSON; to train on a text give --data {}", origin, origin);
  }
  if (const std::string_view format = foreign_format(origin, text); !format.empty()) {
    fail(ErrorKind::usage,
         "{}: it looks like {}, but configuration files are JSON: {{\"train\": {{\"lr\": 1e-3}}}}, "
         "comments allowed, in UTF-8",
         origin, format);
  }
  const std::string message = parser_message(error);
  const bool ends_early = message.find("unexpected '}'") != message.npos ||
                          message.find("unexpected ']'") != message.npos;
  fail(ErrorKind::usage, "{}: not valid JSON: {}{}", origin, message,
       ends_early ? " (is there a comma too many before it?)" : "");
}

// Parses, refusing repeated keys within an object (the parser itself keeps the last of them) and
// deep nesting.
Json parse(std::string_view text, const std::string& origin) {
  std::vector<std::vector<std::string>> open_objects;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) fail(ErrorKind::usage, "{}: nested too deeply", origin);
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      std::vector<std::string>& keys = open_objects.back();
      if (std::ranges::find(keys, key) != keys.end()) {
        fail(ErrorKind::usage, "{}: the key \"{}\" appears twice", origin, key);
      }
      keys.push_back(key);
    }
    return true;
  };
  try {
    const bool allow_exceptions = true;
    const bool ignore_comments = true;
    Json value = Json::parse(text, watch, allow_exceptions, ignore_comments);
    if (!value.is_object()) {
      fail(ErrorKind::usage, "{}: found {} where an object {{...}} is needed", origin,
           value.type_name());
    }
    return value;
  } catch (const Json::exception& error) {
    refuse_text(text, origin, error);
  }
}

void flatten(const Json& object, const std::string& prefix, std::vector<Entry>& entries) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + '.', entries);
    } else {
      entries.push_back({prefix + key, value});
    }
  }
}

// removed: gets the settings that older builds had, which are ignored.
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
    const Setting* setting = find_key(entry.key);
    if (setting == nullptr) {
      fail(ErrorKind::usage, "{}: unknown setting \"{}\"{}", source.origin, entry.key,
           advice_for_key(entry.key, source.command));
    }
    if (std::ranges::find(set, setting) != set.end()) {
      fail(ErrorKind::usage, "{}: the key \"{}\" appears twice", source.origin, entry.key);
    }
    assign_json(*setting, entry.value, fmt::format("{}: {}", source.origin, entry.key), config);
    set.push_back(setting);
  }
  return set;
}

// Paths that the file extends, in order.
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

// Takes out what is no setting. Returns whether a run has written the object.
bool drop_sections(Json& object) {
  const bool is_saved = object.contains(kResolvedKey);
  object.erase(std::string(kResolvedKey));
  object.erase(std::string(kProvenanceKey));
  object.erase(std::string(kPassedOverKey));
  return is_saved;
}

class FileReader {
 public:
  FileReader(Command command, Loaded& loaded) : command_(command), loaded_(loaded) {}

  void read(const std::string& path, std::string_view named_by) {
    std::error_code unresolvable;  // left to read_text, which says what is wrong
    const auto identity = std::filesystem::weakly_canonical(path, unresolvable).string();
    if (std::ranges::find(open_, identity) != open_.end()) {
      fail(ErrorKind::usage, "{}: extends runs in a circle: {} extends itself", named_by, path);
    }
    open_.push_back(identity);
    Json object = parse(read_text(path, named_by), path);
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
  Loaded& loaded_;
  std::vector<std::string> open_;  // files being read, outermost first
};

}  // namespace

bool Loaded::gives(std::string_view key) const {
  return std::ranges::any_of(given, [&](const Setting* setting) { return setting->key == key; });
}

void Loaded::add_layer(const Config& below, const std::vector<const Setting*>& layer) {
  for (std::string& line : drop_rivals(below, layer, config)) replaced.push_back(std::move(line));
  given.insert(given.end(), layer.begin(), layer.end());
}

void apply_file(const std::string& path, Command command, Loaded& loaded) {
  FileReader(command, loaded).read(path, "--config");
}

std::string read_object_text(const std::string& path, std::string_view flag) {
  return parse(read_text(path, flag), path).dump();
}

std::string value_in_file(const std::string& path, std::string_view key) {
  const Json object = parse(read_text(path, "--config"), path);
  const auto found = object.find(key);
  return found == object.end() ? std::string() : found->dump();
}

void apply_text(std::string_view text, const std::string& origin, Config& config) {
  Json object = parse(text, origin);
  drop_sections(object);
  std::vector<Entry> removed;
  apply_entries(object, {.origin = origin, .command = Command::train, .is_saved = true}, config,
                removed);
}

std::string lost_rounding(std::string_view text, const std::string& origin) {
  std::vector<Entry> entries;
  flatten(parse(text, origin), "", entries);
  const auto found = std::ranges::find_if(entries, changes_rounding);
  if (found == entries.end()) return {};
  return fmt::format("{} {}", found->key, found->value.get_ref<const std::string&>());
}

}  // namespace dtrain::config
