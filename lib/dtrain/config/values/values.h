// Value types of settings. A struct converts from text with parse(), which returns empty for
// invalid text, and to text with text(). An enum has a table of its names.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dtrain::config {

/// Splits at commas. "a,b" has two items; "a," has two, the second one empty; "" has none.
[[nodiscard]] std::vector<std::string_view> items_of(std::string_view text);

/// Bytes: "2GiB", "500MB", "1.5GB" or "4096". Units are kB, MB, GB, TB (powers of 1000) and KiB,
/// MiB, GiB, TiB (powers of 1024), in upper or lower case.
struct ByteSize {
  std::int64_t count = 0;
  std::string written = "0";  ///< as the user wrote it

  static std::optional<ByteSize> parse(std::string_view text);
  [[nodiscard]] std::string text() const { return written; }
};

/// Bytes per second: written as a ByteSize, optionally followed by "/s" ("25GB/s").
struct ByteRate {
  std::int64_t count = 0;
  std::string written = "0";  ///< as the user wrote it

  static std::optional<ByteRate> parse(std::string_view text);
  [[nodiscard]] std::string text() const { return written; }
};

/// A duration: "90s", "10m", "1h30m", "1d"; a number without a unit means seconds.
struct Duration {
  double seconds = 0;
  std::string written = "0";  ///< as the user wrote it

  static std::optional<Duration> parse(std::string_view text);
  [[nodiscard]] std::string text() const { return written; }
};

/// How often an event occurs: "100" is a number of steps, a number with a unit is a time, "0" means
/// only at the end, "none" means never.
struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;
  bool at_the_end = true;     ///< the event also occurs at the end
  std::string written = "0";  ///< as the user wrote it

  static std::optional<Interval> parse(std::string_view text);
  [[nodiscard]] std::string text() const { return written; }
  [[nodiscard]] bool is_never() const { return steps == 0 && seconds == 0; }
};

/// A number of sequences, at least 1; "all" is the largest std::int64_t.
struct Sequences {
  std::int64_t count = 1;

  static std::optional<Sequences> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

/// Where a run resumes from: "none", "auto", or a path.
struct Resume {
  enum class Kind { none, automatic, path };
  Kind kind = Kind::none;
  std::string path = {};  ///< of a checkpoint or run folder

  static std::optional<Resume> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool is_none() const { return kind == Kind::none; }
  [[nodiscard]] bool is_automatic() const { return kind == Kind::automatic; }
};

/// "none", "gates", "level", "every:K" (K at least 1), "auto".
struct RecomputeSetting {
  enum class Kind { none, gates, level, every, automatic };
  Kind kind = Kind::none;
  std::int64_t group_size = 0;  ///< layers, with every:K

  static std::optional<RecomputeSetting> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

/// "auto", "full", "chunked:C" (C at least 1).
struct AttentionSetting {
  enum class Kind { automatic, full, chunked };
  Kind kind = Kind::automatic;
  std::int64_t chunk = 0;  ///< positions, with chunked:C

  static std::optional<AttentionSetting> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

/// "none", "bf16", "fp16", "topk:RATIO" (above 0, below 1), "powersgd:RANK" (1 to kMaxRank).
struct Compression {
  enum class Kind {
    none,
    bfloat16,
    float16,
    top_k,     ///< only the largest values
    power_sgd  ///< low-rank factors of each matrix
  };
  static constexpr std::int64_t kMaxRank = 1024;

  Kind kind = Kind::none;
  double ratio = 0;           ///< for top_k: the fraction of values that is sent
  std::int64_t max_rank = 0;  ///< for power_sgd

  static std::optional<Compression> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool is_none() const { return kind == Kind::none; }
  bool operator==(const Compression&) const = default;
};

/// "none", "optimizer", "all", "disk:DIR".
struct Offload {
  enum class Kind { none, optimizer, all, disk };
  Kind kind = Kind::none;
  std::string folder = {};  ///< for disk

  static std::optional<Offload> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

/// "block", "size:N" (N at least 1), "none".
struct WrapPolicy {
  enum class Kind {
    block,  ///< one unit per block; blocks that share parameters share a unit
    size,   ///< as block, but merges neighbours until each unit has at least min_elements
    none,   ///< one unit for the whole model
  };
  Kind kind = Kind::block;
  std::int64_t min_elements = 0;  ///< for size

  static std::optional<WrapPolicy> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  bool operator==(const WrapPolicy&) const = default;
};

/// The order of a stage's forward and backward passes.
enum class PipelineKind {
  gpipe,        ///< all forwards, then all backwards
  one_f_one_b,  ///< each backward as early as possible: few microbatches in flight
  interleaved,  ///< 1F1B with several model chunks per stage
};

/// The name of a schedule; it ends with ':' if a number of chunks follows.
struct PipelineName {
  PipelineKind kind;
  std::string_view name;

  [[nodiscard]] constexpr bool takes_chunks() const { return name.ends_with(':'); }
};
inline constexpr PipelineName kPipelineNames[] = {{PipelineKind::gpipe, "gpipe"},
                                                  {PipelineKind::one_f_one_b, "1f1b"},
                                                  {PipelineKind::interleaved, "interleaved:"}};
inline constexpr std::string_view kPipelineChoices = "gpipe|1f1b|interleaved:V";

/// "gpipe", "1f1b", "interleaved:V" (V at least 2).
struct PipelineSetting {
  PipelineKind kind = PipelineKind::one_f_one_b;
  std::int64_t chunks = 1;  ///< model chunks per stage; above 1 only if interleaved

  static std::optional<PipelineSetting> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  bool operator==(const PipelineSetting&) const = default;
};

/// The number of layers in each part of a pipeline, "3,5,4"; empty for a balanced split.
struct LayerSplit {
  std::vector<std::int64_t> layers = {};

  static std::optional<LayerSplit> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

/// The device to compute on: "auto", "cpu", "cuda", "cuda:1".
struct DeviceName {
  std::string kind = "auto";  ///< "auto", "cpu", or the KIND of a plugin libdtrain_KIND.so
  /// Index among the devices visible to the process; if absent, the local rank.
  std::optional<std::int64_t> index = {};

  static std::optional<DeviceName> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  /// "auto" means the CPU unless resolve() has replaced it.
  [[nodiscard]] bool is_cpu() const { return kind == "cpu" || kind == "auto"; }
};

/// The devices of ranks that are threads, "cpu,0,1"; empty if not given.
struct DeviceList {
  /// The GPU index of each rank; empty for a rank on the CPU.
  std::vector<std::optional<std::int64_t>> devices = {};

  static std::optional<DeviceList> parse(std::string_view text);
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool names_gpus() const;
};

template <typename Value>
concept ParsedValue = requires(const Value& value, std::string_view text) {
  { Value::parse(text) } -> std::same_as<std::optional<Value>>;
  { value.text() } -> std::same_as<std::string>;
};

/// One of the words that a setting accepts.
struct Choice {
  std::string_view name;
  int value = 0;  ///< the enum value of this name

  template <typename Value>
  constexpr Choice(std::string_view word, Value meaning)
      : name(word), value(static_cast<int>(meaning)) {}
};

enum class Strategy {
  single,
  ddp,
  fsdp,
  zero,
  deepspeed,
  tp,
  pp,
  three_axes,
  dp,
  mp,
  automatic  ///< chosen by the ranks after the rendezvous, from measurements
};
enum class DataAxisKind { ddp, zero, fsdp };
enum class FsdpSharding { full, grad_op, none, hybrid };
enum class Accumulation { automatic, sharded, local };
/// When a backward pass gathers its next unit.
enum class BackwardPrefetch {
  pre,   ///< before the current unit's backward: holds two units
  post,  ///< after the current unit's backward, before its reduction: holds one unit
  none,  ///< when it is needed
};
enum class Backend { automatic, none, gloo, shm, hier, local, mpi };
enum class Dtype { automatic, float32, float64, bfloat16, float16 };
enum class Reduction { automatic, ordered, fast };
/// The implementation of layers.
enum class Kernels { automatic, fused, plain };
enum class MatmulPrecision { highest, tf32 };
enum class ScheduleShape { constant, linear, cosine, warmup_stable_decay };
enum class UpdateRule { adamw, sgd };
enum class OnNonfinite { stop, skip };
/// The reaction to a loss or gradient norm far above those of recent steps.
enum class SpikeGuard { off, warn, skip };
/// The count that --match makes equal.
enum class MatchBy {
  parameters,
  flops,  ///< per token of a training step
};
/// The output format of `dtrain checkpoint export`.
enum class ExportFormat { safetensors, huggingface };

inline constexpr Choice kStrategies[] = {{"single", Strategy::single},
                                         {"ddp", Strategy::ddp},
                                         {"fsdp", Strategy::fsdp},
                                         {"zero", Strategy::zero},
                                         {"deepspeed", Strategy::deepspeed},
                                         {"tp", Strategy::tp},
                                         {"pp", Strategy::pp},
                                         {"3d", Strategy::three_axes},
                                         {"dp", Strategy::dp},
                                         {"mp", Strategy::mp},
                                         {"auto", Strategy::automatic}};
inline constexpr Choice kDataAxes[] = {
    {"ddp", DataAxisKind::ddp}, {"zero", DataAxisKind::zero}, {"fsdp", DataAxisKind::fsdp}};
inline constexpr Choice kFsdpShardings[] = {{"full", FsdpSharding::full},
                                            {"grad-op", FsdpSharding::grad_op},
                                            {"none", FsdpSharding::none},
                                            {"hybrid", FsdpSharding::hybrid}};
inline constexpr Choice kAccumulations[] = {{"auto", Accumulation::automatic},
                                            {"sharded", Accumulation::sharded},
                                            {"local", Accumulation::local}};
inline constexpr Choice kBackwardPrefetches[] = {{"pre", BackwardPrefetch::pre},
                                                 {"post", BackwardPrefetch::post},
                                                 {"none", BackwardPrefetch::none}};
inline constexpr Choice kBackends[] = {{"auto", Backend::automatic}, {"none", Backend::none},
                                       {"gloo", Backend::gloo},      {"shm", Backend::shm},
                                       {"hier", Backend::hier},      {"local", Backend::local},
                                       {"mpi", Backend::mpi}};
inline constexpr Choice kRoleDtypes[] = {{"auto", Dtype::automatic},
                                         {"float32", Dtype::float32},
                                         {"float64", Dtype::float64},
                                         {"bfloat16", Dtype::bfloat16},
                                         {"float16", Dtype::float16}};
inline constexpr std::span<const Choice> kDtypes = std::span(kRoleDtypes).subspan(1);
inline constexpr Choice kExportDtypes[] = {kRoleDtypes[0], kRoleDtypes[1], kRoleDtypes[3],
                                           kRoleDtypes[4], kRoleDtypes[2]};
inline constexpr Choice kExportFormats[] = {{"safetensors", ExportFormat::safetensors},
                                            {"huggingface", ExportFormat::huggingface}};
inline constexpr Choice kReductions[] = {
    {"auto", Reduction::automatic}, {"ordered", Reduction::ordered}, {"fast", Reduction::fast}};
inline constexpr Choice kKernels[] = {
    {"auto", Kernels::automatic}, {"fused", Kernels::fused}, {"plain", Kernels::plain}};
inline constexpr Choice kMatmulPrecisions[] = {{"highest", MatmulPrecision::highest},
                                               {"tf32", MatmulPrecision::tf32}};
inline constexpr Choice kSchedules[] = {{"constant", ScheduleShape::constant},
                                        {"linear", ScheduleShape::linear},
                                        {"cosine", ScheduleShape::cosine},
                                        {"wsd", ScheduleShape::warmup_stable_decay}};
inline constexpr Choice kUpdateRules[] = {{"adamw", UpdateRule::adamw}, {"sgd", UpdateRule::sgd}};
inline constexpr Choice kOnNonfinite[] = {{"stop", OnNonfinite::stop}, {"skip", OnNonfinite::skip}};
inline constexpr Choice kSpikeGuards[] = {
    {"off", SpikeGuard::off}, {"warn", SpikeGuard::warn}, {"skip", SpikeGuard::skip}};
inline constexpr Choice kMatchCounts[] = {{"parameters", MatchBy::parameters},
                                          {"flops", MatchBy::flops}};

constexpr std::span<const Choice> choices_of(Strategy) { return kStrategies; }
constexpr std::span<const Choice> choices_of(ExportFormat) { return kExportFormats; }
constexpr std::span<const Choice> choices_of(DataAxisKind) { return kDataAxes; }
constexpr std::span<const Choice> choices_of(FsdpSharding) { return kFsdpShardings; }
constexpr std::span<const Choice> choices_of(Accumulation) { return kAccumulations; }
constexpr std::span<const Choice> choices_of(BackwardPrefetch) { return kBackwardPrefetches; }
constexpr std::span<const Choice> choices_of(Backend) { return kBackends; }
constexpr std::span<const Choice> choices_of(Dtype) { return kRoleDtypes; }
constexpr std::span<const Choice> choices_of(Reduction) { return kReductions; }
constexpr std::span<const Choice> choices_of(Kernels) { return kKernels; }
constexpr std::span<const Choice> choices_of(MatmulPrecision) { return kMatmulPrecisions; }
constexpr std::span<const Choice> choices_of(ScheduleShape) { return kSchedules; }
constexpr std::span<const Choice> choices_of(UpdateRule) { return kUpdateRules; }
constexpr std::span<const Choice> choices_of(OnNonfinite) { return kOnNonfinite; }
constexpr std::span<const Choice> choices_of(SpikeGuard) { return kSpikeGuards; }
constexpr std::span<const Choice> choices_of(MatchBy) { return kMatchCounts; }

template <typename Value>
concept EnumSetting = std::is_enum_v<Value> && requires(Value value) {
  choices_of(value);
};

/// The word for this value in flags and files.
template <EnumSetting Value>
[[nodiscard]] constexpr std::string_view text_of(Value value) {
  for (const Choice& choice : choices_of(value)) {
    if (choice.value == static_cast<int>(value)) return choice.name;
  }
  return {};
}

/// True for bfloat16 and float16.
[[nodiscard]] constexpr bool is_16_bit(Dtype dtype) {
  return dtype == Dtype::bfloat16 || dtype == Dtype::float16;
}

/// Bytes per value. dtype: not automatic.
[[nodiscard]] constexpr std::int64_t bytes_of(Dtype dtype) {
  return is_16_bit(dtype) ? 2 : dtype == Dtype::float64 ? 8 : 4;
}

}  // namespace dtrain::config

/// Formats a value as its text.
template <dtrain::config::ParsedValue Value>
struct fmt::formatter<Value, char> : fmt::formatter<std::string_view> {
  auto format(const Value& value, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(value.text(), context);
  }
};

/// Formats an enum value as its word.
template <dtrain::config::EnumSetting Value>
struct fmt::formatter<Value, char> : fmt::formatter<std::string_view> {
  auto format(Value value, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(dtrain::config::text_of(value), context);
  }
};
