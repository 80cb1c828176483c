#include "dtrain/data/mixture.h"

#include <utility>

#include "dtrain/config/data_mixture.h"

namespace dtrain::data {
namespace {

static_assert(config::kMostMixedFiles == SourceOrder::kBlock);

std::vector<double> weights_of(const Mixture& mixture) {
  std::vector<double> weights;
  for (const Mixture::Source& source : mixture.sources()) weights.push_back(source.weight);
  return weights;
}

}  // namespace

std::vector<double> epochs_of(const Mixture& mixture, double samples) {
  const SourceOrder order(weights_of(mixture));
  std::vector<double> epochs;
  for (std::size_t i = 0; i < mixture.sources().size(); ++i) {
    const double share = static_cast<double>(order.share(i)) / SourceOrder::kBlock;
    epochs.push_back(share * samples / static_cast<double>(mixture.sources()[i].samples.size()));
  }
  return epochs;
}

MixtureReader::MixtureReader(Mixture mixture, std::uint64_t seed)
    : mixture_(std::move(mixture)), sources_(weights_of(mixture_)) {
  for (const Mixture::Source& source : mixture_.sources()) {
    orders_.emplace_back(source.samples.size(), seed);
  }
}

void MixtureReader::copy(std::int64_t consumed, std::span<std::int64_t> inputs,
                         std::span<std::int64_t> targets) const {
  const SourceOrder::Place place =
      orders_.size() == 1 ? SourceOrder::Place{.consumed = consumed} : sources_(consumed);
  const SampleOrder& order = orders_[place.source];
  mixture_.sources()[place.source].samples.copy(order(place.consumed), inputs, targets,
                                                order.shift(place.consumed, seq_len()));
}

}  // namespace dtrain::data
