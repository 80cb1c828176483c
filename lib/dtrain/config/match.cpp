#include "dtrain/config/match.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "dtrain/config/resolve/resolve.h"

namespace dtrain::config {
namespace {

// The first divisor of the tuned size: GPUs multiply matrices fastest if sizes are multiples of 8.
constexpr std::int64_t kFirstStep = 8;

class SizeSearch {
 public:
  explicit SizeSearch(const SizeRequest& request)
      : request_(request),
        sizing_(family_of(request.config.model).sizing),
        width_(*find_key("model.width")),
        tuned_(*find_key(sizing_.tuned_key)),
        config_(request.config) {}

  SizedModel run() {
    for (const std::int64_t layers : layer_numbers()) {
      config_.model.layers = layers;
      for (const std::int64_t width : widths()) {
        config_.model.width = width;
        tune();
        if (nearest_.is_match()) return nearest_;
      }
    }
    return nearest_;
  }

 private:
  [[nodiscard]] bool is_fixed(std::string_view key) const {
    return std::ranges::find(request_.fixed, key) != request_.fixed.end();
  }
  [[nodiscard]] std::int64_t& tuned_size() {
    return std::get<FieldOf<std::int64_t>>(tuned_.field)(config_);
  }

  // The closest to the matched model's come first.
  [[nodiscard]] std::vector<std::int64_t> layer_numbers() const {
    const std::int64_t wanted = request_.config.model.layers;
    if (is_fixed("model.layers")) return {wanted};
    const auto highest = static_cast<std::size_t>(find_key("model.layers")->allowed.range.highest);
    std::vector<std::int64_t> numbers(highest);
    std::iota(numbers.begin(), numbers.end(), 1);
    std::ranges::stable_sort(numbers, {},
                             [&](std::int64_t number) { return std::abs(number - wanted); });
    return numbers;
  }

  [[nodiscard]] std::vector<std::int64_t> widths() {
    if (is_fixed(width_.key)) return {request_.config.model.width};
    const std::int64_t step = sizing_.width_step(config_.model);
    const bool tunes = !is_fixed(tuned_.key);
    const std::int64_t width = largest_below(width_, step, [&](std::int64_t value) {
      config_.model.width = value;
      if (tunes) tuned_size() = sizing_.usual_value(config_.model);
    });
    return tunes ? std::vector{width} : std::vector{width, width + step};
  }

  // Tries values of the tuned size for the current layers and width.
  void tune() {
    if (is_fixed(tuned_.key)) return keep_if_nearest();
    for (std::int64_t step = kFirstStep; step >= sizing_.tuned_step; step /= 2) {
      const std::int64_t below =
          largest_below(tuned_, step, [&](std::int64_t value) { tuned_size() = value; });
      for (const std::int64_t value : {below, below + step}) {
        tuned_size() = value;
        keep_if_nearest();
      }
      if (nearest_.is_match()) return;
    }
  }

  // The largest multiple of `step` in the setting's range with at most the wanted count; `step` if
  // there is none. set(value): sets the size in config_.
  template <typename Set>
  std::int64_t largest_below(const Setting& setting, std::int64_t step, Set set) {
    std::int64_t low = 1;
    std::int64_t high = static_cast<std::int64_t>(setting.allowed.range.highest) / step;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      set(middle * step);
      if (count_of(request_.by, config_) <= request_.count) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low * step;
  }

  void keep_if_nearest() {
    const bool is_allowed =
        width_.allowed.range.contains(static_cast<double>(config_.model.width)) &&
        tuned_.allowed.range.contains(static_cast<double>(tuned_size()));
    if (!is_allowed) return;
    const double count = count_of(request_.by, config_);
    const double difference = count / request_.count - 1;
    if (std::abs(difference) >= std::abs(nearest_.difference)) return;
    nearest_ = {.model = config_.model, .count = count, .difference = difference};
  }

  const SizeRequest& request_;
  const Sizing& sizing_;
  const Setting& width_;
  const Setting& tuned_;
  Config config_;  // with the sizes that are tried
  SizedModel nearest_{.model = {}, .difference = std::numeric_limits<double>::infinity()};
};

}  // namespace

double count_of(MatchBy by, const Config& config) {
  const Family& family = family_of(config.model);
  if (by == MatchBy::parameters) return static_cast<double>(family.sizing.parameters(config.model));
  if (family.attention_chunk == nullptr) return family.sizing.training_flops(config);
  Config resolved = config;
  resolve_attention(resolved);
  return family.sizing.training_flops(resolved);
}

bool SizedModel::is_match() const { return std::abs(difference) <= kMatchTolerance; }

SizedModel match_sizes(const SizeRequest& request) { return SizeSearch(request).run(); }

}  // namespace dtrain::config
