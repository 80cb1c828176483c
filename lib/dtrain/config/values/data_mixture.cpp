#include "dtrain/config/values/data_mixture.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/text/number.h"
#include "dtrain/config/values/values.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kForm =
    "a mixture is FILE:WEIGHT,FILE:WEIGHT, without commas in file names";

WeightedFile weighted_file(std::string_view item, const std::string& text) {
  const std::size_t colon = item.rfind(':');
  if (item.empty() || colon == item.npos || colon == 0) {
    fail(ErrorKind::usage, "--data {}: \"{}\" has no weight; {}", text, item, kForm);
  }
  const auto weight = base::number_in<double>(item.substr(colon + 1));
  if (!weight || !std::isfinite(*weight) || *weight <= 0) {
    fail(
        ErrorKind::usage,
        "--data {}: the weight of \"{}\" is \"{}\", but it must be a number above 0; omit unwanted "
        "files",
        text, item.substr(0, colon), item.substr(colon + 1));
  }
  return {std::string(item.substr(0, colon)), *weight};
}

bool ends_with_number(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  return colon != text.npos && base::number_in<double>(text.substr(colon + 1)).has_value();
}

void check_together(const std::vector<WeightedFile>& files) {
  if (files.size() > kMaxMixtureFiles) {
    fail(ErrorKind::usage, "--data names {} files, but at most {} can be mixed; join some of them",
         files.size(), kMaxMixtureFiles);
  }
  double total = 0;
  for (const WeightedFile& file : files) total += file.weight;
  if (std::isfinite(total)) return;
  fail(ErrorKind::usage, "--data: the sum of the weights overflows; scale all of them down");
}

}  // namespace

std::vector<WeightedFile> parse_mixture(const std::string& text) {
  std::error_code error;
  const bool is_list = text.find(',') != text.npos || ends_with_number(text);
  if (!is_list || std::filesystem::exists(text, error)) return {{text, 1}};
  std::vector<WeightedFile> files;
  for (const std::string_view item : items_of(text)) files.push_back(weighted_file(item, text));
  check_together(files);
  return files;
}

std::vector<WeightedFile> mixture_or_file(const std::string& text) {
  try {
    std::vector<WeightedFile> files = parse_mixture(text);
    if (files.size() > 1) return files;
  } catch (const base::Error&) {
    // Only an existing file may have commas in its name, so this one is missing.
  }
  return {{text, 1}};
}

void reject_single_file_mixture(const std::string& text) {
  const std::vector<WeightedFile> files = parse_mixture(text);
  if (files.size() > 1 || files.front().path == text) return;
  fail(ErrorKind::usage, "--data {}: {}; give one file without a weight: --data {}", text, kForm,
       files.front().path);
}

std::string mixture_text(const std::vector<WeightedFile>& files) {
  if (files.size() == 1) return files.front().path;
  std::string text;
  for (const WeightedFile& file : files) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", file.path, file.weight);
  }
  return text;
}

}  // namespace dtrain::config
