#include "dtrain/base/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace dtrain::base {

void Checksum::Deleter::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string checksum_text(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace dtrain::base
