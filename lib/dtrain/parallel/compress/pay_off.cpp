#include "dtrain/parallel/compress/pay_off.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "dtrain/base/clock.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/device/synchronize.h"
#include "dtrain/parallel/compress/compressed_sum.h"

namespace dtrain::parallel {
namespace {

using Kind = config::Compression::Kind;

constexpr int kTrials = 3;                                     // of which the fastest counts
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;  // that a trial compresses
constexpr std::array kUsual = {"bf16", "fp16", "topk:0.01", "powersgd:4"};

std::shared_ptr<comm::ProcessGroup> group_of_one() {
  return std::make_shared<comm::QueuedGroup>(
      comm::GroupIdentity{.name = "compression", .world_ranks = {0}}, comm::GroupOptions{},
      nullptr);
}

// The part, or as many of its first elements or rows as a trial takes; a factor has fewer columns
// than its matrix has rows.
GradientPart trial_part(GradientPart part, std::int64_t least_rows) {
  std::int64_t size = std::min(part.size(), kMostElements);
  if (part.columns > 0) {
    part.rows = std::min(part.rows, std::max(size / part.columns, least_rows));
    size = part.rows * part.columns;
  }
  part.range.end = part.range.begin + size;
  return part;
}

// A step of one part, without anything to wait for.
double seconds_of(const GradientPart& part, const config::Compression& scheme,
                  std::int64_t num_ranks, at::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const auto group = group_of_one();
  const auto own = make_scheme(part, scheme, *group, dtype, [&](std::int64_t bytes) {
    return at::zeros({bytes}, options.dtype(at::kByte));
  });
  const at::Tensor gradients = at::randn({part.size()}, options);
  // Every rank's message is decompressed where they are not added on their way.
  const double messages = scheme.kind == Kind::top_k ? static_cast<double>(num_ranks) : 1;
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const at::Tensor values = gradients.clone();
    const at::Tensor sum = at::zeros_like(values);
    device::synchronize(device);
    const auto start = base::Clock::now();
    own->begin(values);
    own->advance();
    device::synchronize(device);
    const double compressed = base::seconds_since(start);
    own->finish(sum);
    device::synchronize(device);
    const double seconds = compressed + messages * (base::seconds_since(start) - compressed);
    best = trial == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

// Without padding.
std::int64_t whole_bytes(const RankSumSetup& setup, std::int64_t num_ranks) {
  std::int64_t elements = 0;
  for (const param::ParameterId id : setup.layout.parameters()) {
    if (!setup.layout.is_frozen(id)) elements += setup.layout.range_in(id, setup.shard).size();
  }
  return bytes_in_ring(setup.codec->sent_bytes(elements), num_ranks);
}

PayOff pay_off_of(const RankSumSetup& setup, std::int64_t num_ranks, c10::Device device) {
  const config::Compression& scheme = setup.compression.scheme;
  const std::int64_t whole = whole_bytes(setup, num_ranks);
  PayOff pay_off{.scheme = scheme.text(), .bytes_sent = whole, .bytes_whole = whole};
  if (scheme.is_none()) return pay_off;
  pay_off.bytes_sent = CompressedSum::costs(setup, num_ranks).sent;
  std::vector<GradientPart> parts = gradient_parts(setup.layout, setup.shard, setup.compression);
  std::erase_if(parts, [](const GradientPart& part) { return !part.is_compressed; });
  if (parts.empty()) return pay_off;
  const GradientPart trial =
      trial_part(*std::ranges::max_element(parts, {}, &GradientPart::size), scheme.max_rank);
  const auto elements =
      std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradientPart& part) { return sum + part.size(); });
  const double share = static_cast<double>(elements) / static_cast<double>(trial.size());
  pay_off.seconds = share * seconds_of(trial, scheme, num_ranks, setup.dtype, device);
  return pay_off;
}

}  // namespace

double PayOff::pays_below() const {
  constexpr double kBits = 8;
  if (seconds == 0 || bytes_sent >= bytes_whole) return 0;
  return kBits * static_cast<double>(bytes_whole - bytes_sent) / seconds;
}

std::vector<PayOff> measure_pay_offs(const RankSumSetup& setup, std::int64_t num_ranks,
                                     c10::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<PayOff> found{pay_off_of(setup, num_ranks, device)};
  for (const std::string usual : kUsual) {
    if (usual == found.front().scheme) continue;
    RankSumSetup other = setup;
    other.compression.scheme = config::Compression::parse(usual).value();
    const PayOff pay_off = pay_off_of(other, num_ranks, device);
    if (pay_off.pays_below() > 0) found.push_back(pay_off);
  }
  return found;
}

}  // namespace dtrain::parallel
