#include "dtrain/comm/shm/all_to_all.h"

#include <algorithm>
#include <iterator>

#include "dtrain/base/check.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

AllToAll::AllToAll(Meeting& meeting, std::byte* staging, const PartedTensor& input,
                   const PartedTensor& output)
    : meeting_(meeting),
      table_(reinterpret_cast<Piece*>(staging)),
      input_(input),
      output_(output),
      is_reachable_(
          meeting.neighbours().reachable(bytes_of(input.tensor()), size_in_bytes(input.tensor()))),
      piece_bytes_(staging_bytes(meeting.size()) / meeting.size() -
                   static_cast<std::int64_t>(sizeof(Piece))) {}

void AllToAll::run(const base::Deadline& deadline) {
  std::ranges::copy(input_.part(meeting_.rank()), output_.part(meeting_.rank()).data());
  bool has_more = true;
  for (std::int64_t first = 0; has_more; first += piece_bytes_) {
    lay_out(first);
    meeting_.arrive_with_call(deadline);
    has_more = take(first);
    meeting_.arrive(deadline);  // after which the pieces may be overwritten
  }
}

void AllToAll::lay_out(std::int64_t first) {
  Offer& offer = meeting_.own_slot().offer;
  offer = {.call = {.op = Collective::all_to_all,
                    .dtype = static_cast<std::int32_t>(input_.tensor().scalar_type())},
           .location = meeting_.location_of(reinterpret_cast<const std::byte*>(table_))};
  for (std::int64_t peer = 0; peer < meeting_.size(); ++peer) {
    const std::int64_t all = std::ssize(input_.part(peer));
    const std::span<std::byte> piece = piece_for(peer, first);
    table_[peer] = {.location = meeting_.location_of(piece.data()),
                    .bytes = std::ssize(piece),
                    .message_bytes = all};
    if (!is_reachable_ && first + piece_bytes_ < all) offer.has_more = 1;
  }
}

std::span<std::byte> AllToAll::piece_for(std::int64_t peer, std::int64_t first) {
  const std::span<std::byte> part = input_.part(peer);
  if (peer == meeting_.rank() || first >= std::ssize(part)) return {};
  if (is_reachable_) return first == 0 ? part : std::span<std::byte>();
  std::byte* staged = reinterpret_cast<std::byte*>(table_ + meeting_.size()) + peer * piece_bytes_;
  const std::int64_t count = std::min(piece_bytes_, std::ssize(part) - first);
  std::copy_n(part.data() + first, count, staged);
  return {staged, static_cast<std::size_t>(count)};
}

bool AllToAll::take(std::int64_t first) {
  const std::int64_t own = meeting_.rank();
  bool has_more = false;
  for (std::int64_t step = 0; step < meeting_.size(); ++step) {
    const std::int64_t peer = (own + step) % meeting_.size();  // not all from rank 0 first
    const Offer& offer = meeting_.slot_of(peer).offer;
    const Piece piece = reinterpret_cast<const Piece*>(meeting_.at(peer, offer.location))[own];
    const std::span<std::byte> part = output_.part(peer);
    DTRAIN_CHECK(piece.message_bytes == std::ssize(part),
                 "rank {} of a group has {} bytes for rank {}, which expects {}", peer,
                 piece.message_bytes, own, std::ssize(part));
    std::copy_n(meeting_.at(peer, piece.location), piece.bytes, part.data() + first);
    has_more = has_more || offer.has_more != 0;
  }
  return has_more;
}

}  // namespace dtrain::comm
