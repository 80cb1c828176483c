#include "dtrain/data/identity.h"

#include <fmt/format.h>

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

}  // namespace

DataIdentity identify(const Split& split) {
  const TokenFile& training = split.train.file();
  const TokenFile& validation = split.validation.file();
  const std::uint64_t checksum = training.checksum();
  const bool reads_other = &validation != &training && split.validation.size() > 0;
  return {.training = describe(split.train, checksum),
          .validation = describe(split.validation, reads_other ? validation.checksum() : checksum)};
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
