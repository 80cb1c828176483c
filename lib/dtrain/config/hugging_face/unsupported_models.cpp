#include "dtrain/config/hugging_face/unsupported_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <vector>

#include "dtrain/base/io/path_kind.h"

namespace dtrain::config {
namespace {

// True for a name of an owner or of a model.
bool is_hub_name(std::string_view part) {
  return !part.empty() && part.front() != '.' && std::ranges::all_of(part, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// True for the names of files, which are mistyped paths rather than names of models.
bool is_file_name(std::string_view name) {
  constexpr std::string_view kEndings[] = {".safetensors", ".bin",   ".pt",  ".gguf",
                                           ".json",        ".model", ".dtok"};
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

std::string download_advice(std::string_view path) {
  if (path.ends_with('/')) path.remove_suffix(1);
  const std::size_t slash = path.find('/');
  const bool has_owner = slash != path.npos;
  const std::string_view owner = path.substr(0, slash);
  const std::string_view name = has_owner ? path.substr(slash + 1) : path;
  if (!is_hub_name(owner) || !is_hub_name(name) || is_file_name(name)) return {};
  if (!has_owner && name.find('.') != name.npos) return {};
  if (owner == "runs" || base::path_exists(owner)) return {};
  return fmt::format(
      "; if it is a model of the Hugging Face hub, download its folder: hf download {} --local-dir "
      "{}",
      path, name);
}

std::string gguf_file_in(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::string> names = base::names_in(folder, ignored);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".gguf"); });
  if (names.empty()) return {};
  return (std::filesystem::path(folder) / *std::ranges::min_element(names)).string();
}

}  // namespace dtrain::config
