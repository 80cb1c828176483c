// Settings that are one word of a list: their values, and the only tables of their words.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <type_traits>

namespace dtrain::config {

/// A word a setting allows, or a known one that is refused: "NAME REFUSAL; use one of: ...".
struct Choice {
  std::string_view name;
  int value = 0;  ///< of the setting's enum
  std::string_view refusal = {};

  template <typename Value>
  constexpr Choice(std::string_view word, Value meaning, std::string_view why_not = {})
      : name(word), value(static_cast<int>(meaning)), refusal(why_not) {}
  [[nodiscard]] constexpr bool works() const noexcept { return refusal.empty(); }
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
  automatic  ///< as its ranks choose, when they have met, from what they measure
};
enum class DataAxisKind { ddp, zero, fsdp };
enum class FsdpSharding { full, grad_op, none, hybrid };
enum class Accumulation { automatic, sharded, local };
/// When the next unit of a backward pass is gathered.
enum class BackwardPrefetch {
  pre,   ///< before the backward of the unit in use: two units are there meanwhile
  post,  ///< after it, ahead of its reduction: one unit is there
  none,  ///< when it is needed
};
enum class Backend { automatic, none, gloo, shm, hier, local, nccl, mpi };
enum class Dtype { automatic, float32, float64, bfloat16, float16 };
enum class Reduction { automatic, ordered, fast };
/// How levels are computed.
enum class Kernels { automatic, fused, plain };
enum class MatmulPrecision { highest, tf32 };
enum class ScheduleShape { constant, linear, cosine, warmup_stable_decay };
enum class UpdateRule { adamw, sgd };
enum class OnNonfinite { stop, skip };
/// What follows from a loss or gradient norm far above those of the steps before.
enum class SpikeGuard { off, warn, skip };

inline constexpr std::string_view kOfGpus = "comes with --device cuda, where --backend is left out";

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
inline constexpr Choice kBackends[] = {{"auto", Backend::automatic},     {"none", Backend::none},
                                       {"gloo", Backend::gloo},          {"shm", Backend::shm},
                                       {"hier", Backend::hier},          {"local", Backend::local},
                                       {"nccl", Backend::nccl, kOfGpus}, {"mpi", Backend::mpi}};
inline constexpr Choice kRoleDtypes[] = {{"auto", Dtype::automatic},
                                         {"float32", Dtype::float32},
                                         {"float64", Dtype::float64},
                                         {"bfloat16", Dtype::bfloat16},
                                         {"float16", Dtype::float16}};
inline constexpr std::span<const Choice> kDtypes = std::span(kRoleDtypes).subspan(1);
inline constexpr Choice kExportDtypes[] = {kRoleDtypes[0], kRoleDtypes[1], kRoleDtypes[3],
                                           kRoleDtypes[4], kRoleDtypes[2]};
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

constexpr std::span<const Choice> words_of(Strategy) { return kStrategies; }
constexpr std::span<const Choice> words_of(DataAxisKind) { return kDataAxes; }
constexpr std::span<const Choice> words_of(FsdpSharding) { return kFsdpShardings; }
constexpr std::span<const Choice> words_of(Accumulation) { return kAccumulations; }
constexpr std::span<const Choice> words_of(BackwardPrefetch) { return kBackwardPrefetches; }
constexpr std::span<const Choice> words_of(Backend) { return kBackends; }
constexpr std::span<const Choice> words_of(Dtype) { return kRoleDtypes; }
constexpr std::span<const Choice> words_of(Reduction) { return kReductions; }
constexpr std::span<const Choice> words_of(Kernels) { return kKernels; }
constexpr std::span<const Choice> words_of(MatmulPrecision) { return kMatmulPrecisions; }
constexpr std::span<const Choice> words_of(ScheduleShape) { return kSchedules; }
constexpr std::span<const Choice> words_of(UpdateRule) { return kUpdateRules; }
constexpr std::span<const Choice> words_of(OnNonfinite) { return kOnNonfinite; }
constexpr std::span<const Choice> words_of(SpikeGuard) { return kSpikeGuards; }

template <typename Value>
concept Word = std::is_enum_v<Value> && requires(Value value) {
  words_of(value);
};

/// The word that a flag takes for this value.
template <Word Value>
[[nodiscard]] constexpr std::string_view text_of(Value value) {
  for (const Choice& choice : words_of(value)) {
    if (choice.value == static_cast<int>(value)) return choice.name;
  }
  return {};
}

/// 16 bits.
[[nodiscard]] constexpr bool is_low(Dtype dtype) {
  return dtype == Dtype::bfloat16 || dtype == Dtype::float16;
}

}  // namespace dtrain::config

/// Messages print the word of a value.
template <dtrain::config::Word Value>
struct fmt::formatter<Value, char> : fmt::formatter<std::string_view> {
  auto format(Value value, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(dtrain::config::text_of(value), context);
  }
};
