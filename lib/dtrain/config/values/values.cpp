#include "dtrain/config/values/values.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <ranges>

#include "dtrain/base/text/number.h"

namespace dtrain::config {
namespace {

constexpr std::int64_t kMaxSequences = std::int64_t{1} << 31;
constexpr std::int64_t kAllSequences = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kEvery = "every:";
constexpr std::string_view kChunked = "chunked:";
constexpr std::string_view kTopK = "topk:";
constexpr std::string_view kPowerSgd = "powersgd:";
constexpr std::string_view kDisk = "disk:";
constexpr std::string_view kSize = "size:";
constexpr std::string_view kCpu = "cpu";

// Parses the whole text as an integer of at least `least`.
std::optional<std::int64_t> whole_number(std::string_view text, std::int64_t least) {
  const auto value = base::whole_number_in<std::int64_t>(text);
  return value && *value >= least ? value : std::nullopt;
}

// Parses the number after a prefix, as in "every:3"; nothing if the text lacks the prefix.
std::optional<std::int64_t> number_after(std::string_view prefix, std::string_view text,
                                         std::int64_t least) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return whole_number(text.substr(prefix.size()), least);
}

}  // namespace

std::vector<std::string_view> items_of(std::string_view text) {
  std::vector<std::string_view> items;
  for (const auto item : std::views::split(text, ',')) items.emplace_back(item.begin(), item.end());
  return items;
}

std::optional<ByteSize> ByteSize::parse(std::string_view text) {
  const auto bytes = base::bytes_in(text);
  return bytes ? std::optional(ByteSize{*bytes, std::string(text)}) : std::nullopt;
}

std::optional<ByteRate> ByteRate::parse(std::string_view text) {
  const auto bytes = base::bytes_in(base::without_per_second(text));
  return bytes ? std::optional(ByteRate{*bytes, std::string(text)}) : std::nullopt;
}

std::optional<Duration> Duration::parse(std::string_view text) {
  const auto seconds = base::seconds_in(text);
  return seconds ? std::optional(Duration{*seconds, std::string(text)}) : std::nullopt;
}

std::optional<Interval> Interval::parse(std::string_view text) {
  const std::string written(text);
  if (text == "none") return Interval{.at_the_end = false, .written = written};
  if (const auto steps = whole_number(text, 0)) {
    return Interval{.steps = *steps, .written = std::to_string(*steps)};
  }
  const bool is_number = base::number_in<double>(text).has_value();  // "1.5" is no number of steps
  const auto seconds = is_number ? std::nullopt : base::seconds_in(text);
  if (!seconds) return std::nullopt;
  return *seconds == 0 ? Interval{} : Interval{.seconds = *seconds, .written = written};  // "0s"
}

std::optional<Sequences> Sequences::parse(std::string_view text) {
  if (text == "all") return Sequences{kAllSequences};
  const auto count = whole_number(text, 1);
  return count && *count <= kMaxSequences ? std::optional(Sequences{*count}) : std::nullopt;
}

std::string Sequences::text() const {
  return count == kAllSequences ? "all" : std::to_string(count);
}

std::optional<Resume> Resume::parse(std::string_view text) {
  if (text == "none") return Resume{};
  if (text == "auto") return Resume{.kind = Kind::automatic};
  return Resume{.kind = Kind::path, .path = std::string(text)};
}

std::string Resume::text() const {
  return kind == Kind::none ? "none" : kind == Kind::automatic ? "auto" : path;
}

std::optional<RecomputeSetting> RecomputeSetting::parse(std::string_view text) {
  if (text == "none") return RecomputeSetting{};
  if (text == "gates") return RecomputeSetting{.kind = Kind::gates};
  if (text == "level") return RecomputeSetting{.kind = Kind::level};
  if (text == "auto") return RecomputeSetting{.kind = Kind::automatic};
  const auto size = number_after(kEvery, text, 1);
  return size ? std::optional(RecomputeSetting{Kind::every, *size}) : std::nullopt;
}

std::string RecomputeSetting::text() const {
  if (kind == Kind::every) return fmt::format("{}{}", kEvery, group_size);
  if (kind == Kind::none) return "none";
  if (kind == Kind::gates) return "gates";
  return kind == Kind::level ? "level" : "auto";
}

std::optional<AttentionSetting> AttentionSetting::parse(std::string_view text) {
  if (text == "auto") return AttentionSetting{};
  if (text == "full") return AttentionSetting{.kind = Kind::full};
  const auto chunk = number_after(kChunked, text, 1);
  return chunk ? std::optional(AttentionSetting{Kind::chunked, *chunk}) : std::nullopt;
}

std::string AttentionSetting::text() const {
  if (kind == Kind::chunked) return fmt::format("{}{}", kChunked, chunk);
  return kind == Kind::full ? "full" : "auto";
}

std::optional<Compression> Compression::parse(std::string_view text) {
  Compression value;
  if (text == "none") return value;
  if (text == "bf16" || text == "fp16") {
    value.kind = text == "bf16" ? Kind::bfloat16 : Kind::float16;
    return value;
  }
  if (const auto rank = number_after(kPowerSgd, text, 1)) {
    value.kind = Kind::power_sgd;
    value.max_rank = *rank;
    return *rank <= kMaxRank ? std::optional(value) : std::nullopt;
  }
  if (!text.starts_with(kTopK)) return std::nullopt;
  const auto ratio = base::number_in<double>(text.substr(kTopK.size()));
  if (!ratio || !(*ratio > 0 && *ratio < 1)) return std::nullopt;
  value.kind = Kind::top_k;
  value.ratio = *ratio;
  return value;
}

std::string Compression::text() const {
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::bfloat16:
      return "bf16";
    case Kind::float16:
      return "fp16";
    case Kind::top_k:
      return fmt::format("{}{}", kTopK, ratio);
    case Kind::power_sgd:
      return fmt::format("{}{}", kPowerSgd, max_rank);
  }
  return {};
}

std::optional<Offload> Offload::parse(std::string_view text) {
  if (text == "none") return Offload{};
  if (text == "optimizer") return Offload{.kind = Kind::optimizer};
  if (text == "all") return Offload{.kind = Kind::all};
  if (!text.starts_with(kDisk) || text.size() == kDisk.size()) return std::nullopt;
  return Offload{Kind::disk, std::string(text.substr(kDisk.size()))};
}

std::string Offload::text() const {
  if (kind == Kind::disk) return std::string(kDisk) + folder;
  return kind == Kind::none ? "none" : kind == Kind::optimizer ? "optimizer" : "all";
}

std::optional<WrapPolicy> WrapPolicy::parse(std::string_view text) {
  if (text == "block") return WrapPolicy{};
  if (text == "none") return WrapPolicy{.kind = Kind::none};
  const auto elements = number_after(kSize, text, 1);
  return elements ? std::optional(WrapPolicy{Kind::size, *elements}) : std::nullopt;
}

std::string WrapPolicy::text() const {
  if (kind == Kind::size) return fmt::format("{}{}", kSize, min_elements);
  return kind == Kind::none ? "none" : "block";
}

std::optional<PipelineSetting> PipelineSetting::parse(std::string_view text) {
  for (const PipelineName& each : kPipelineNames) {
    if (!each.takes_chunks() && text == each.name) return PipelineSetting{.kind = each.kind};
    const auto chunks = each.takes_chunks() ? number_after(each.name, text, 2) : std::nullopt;
    if (chunks) return PipelineSetting{each.kind, *chunks};
  }
  return std::nullopt;
}

std::string PipelineSetting::text() const {
  const auto* own = std::find_if(std::begin(kPipelineNames), std::end(kPipelineNames),
                                 [&](const PipelineName& each) { return each.kind == kind; });
  return own->takes_chunks() ? fmt::format("{}{}", own->name, chunks) : std::string(own->name);
}

std::optional<LayerSplit> LayerSplit::parse(std::string_view text) {
  LayerSplit split;
  for (const std::string_view item : items_of(text)) {
    const auto count = whole_number(item, 0);
    if (!count) return std::nullopt;
    split.layers.push_back(*count);
  }
  return split;
}

std::string LayerSplit::text() const { return fmt::format("{}", fmt::join(layers, ",")); }

std::optional<DeviceName> DeviceName::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  DeviceName device{.kind = std::string(text.substr(0, colon))};
  const bool is_name = !device.kind.empty() && std::ranges::all_of(device.kind, [](char c) {
    return (c >= 'a' && c <= 'z') || c == '_';
  });
  if (!is_name) return std::nullopt;
  if (colon == text.npos) return device;
  device.index = base::number_in<std::int64_t>(text.substr(colon + 1));
  const bool has_number = device.index && *device.index >= 0 && !device.is_cpu();
  return has_number ? std::optional(device) : std::nullopt;
}

std::string DeviceName::text() const { return index ? fmt::format("{}:{}", kind, *index) : kind; }

std::optional<DeviceList> DeviceList::parse(std::string_view text) {
  DeviceList list;
  for (const std::string_view item : items_of(text)) {
    const auto gpu = whole_number(item, 0);
    if (!gpu && item != kCpu) return std::nullopt;
    list.devices.push_back(gpu);
  }
  return list;
}

std::string DeviceList::text() const {
  std::vector<std::string> names;
  for (const auto& gpu : devices) names.push_back(gpu ? std::to_string(*gpu) : std::string(kCpu));
  return fmt::format("{}", fmt::join(names, ","));
}

bool DeviceList::names_gpus() const {
  return std::ranges::any_of(devices, [](const auto& gpu) { return gpu.has_value(); });
}

}  // namespace dtrain::config
