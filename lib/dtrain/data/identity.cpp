#include "dtrain/data/identity.h"

#include <fmt/format.h>

#include <vector>

#include "dtrain/data/sampler.h"

namespace dtrain::data {
namespace {

constexpr std::string_view kBetween = "; validation: ";
constexpr std::string_view kOldForm = " samples, fingerprint ";

std::string describe(const Samples& samples, std::uint64_t checksum) {
  if (samples.size() == 0) return "none";
  const std::int64_t width = samples.file().bytes_per_token();
  return fmt::format("{} samples, tokens {} to {} of a file with xxh3 {:016x}{}", samples.size(),
                     samples.range().begin, samples.range().end, checksum,
                     width == 1 ? "" : fmt::format(" ({} bytes per token)", width));
}

/// Several files, each with its share of SourceOrder::kBlock samples.
std::string describe(const Mixture& mixture) {
  std::vector<double> weights;
  for (const Mixture::Source& source : mixture.sources()) weights.push_back(source.weight);
  const SourceOrder order(weights);
  std::string text;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Samples& samples = mixture.sources()[i].samples;
    text += fmt::format("{}{} of {}: {}", i == 0 ? "mixture of " : " and ", order.share(i),
                        SourceOrder::kBlock, describe(samples, samples.file().checksum()));
  }
  return text;
}

}  // namespace

DataIdentity identify(const Split& split) {
  const Samples& training = split.train.first();
  const Samples& validation = split.validation;
  const bool is_mixture = split.train.sources().size() > 1;
  const bool shares_file = &validation.file() == &training.file();
  const std::uint64_t checksum = is_mixture ? 0 : training.file().checksum();
  const bool reads_other = (!shares_file || is_mixture) && validation.size() > 0;
  return {
      .training = is_mixture ? describe(split.train) : describe(training, checksum),
      .validation = describe(validation, reads_other ? validation.file().checksum() : checksum)};
}

std::string to_text(const DataIdentity& identity) {
  return fmt::format("{}{}{}", identity.training, kBetween, identity.validation);
}

DataIdentity identity_from(std::string_view text) {
  const std::size_t cut = text.find(kBetween);
  if (cut == std::string_view::npos) return {.training = std::string(text), .validation = {}};
  return {.training = std::string(text.substr(0, cut)),
          .validation = std::string(text.substr(cut + kBetween.size()))};
}

bool is_without_checksum(std::string_view training) {
  return training.find(kOldForm) != std::string_view::npos;
}

}  // namespace dtrain::data
