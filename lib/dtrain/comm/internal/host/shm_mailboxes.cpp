#include "dtrain/comm/internal/host/shm_mailboxes.h"

#include <vector>

namespace dtrain::comm {

Mailbox& ShmMailboxes::mailbox_to(std::int64_t peer) const {
  return context_.control_block().mailbox(context_.rank(), peer);
}

Mailbox& ShmMailboxes::mailbox_from(std::int64_t peer) const {
  return context_.control_block().mailbox(peer, context_.rank());
}

void ShmMailboxes::wait_for_count(Futex& counter, std::uint32_t target, std::int64_t peer,
                                  const base::Deadline& deadline) {
  context_.wait(counter, target, deadline, [peer] { return std::vector{peer}; });
}

std::uint32_t ShmMailboxes::wait_for_free_chunk(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = mailbox_to(peer);
  const std::uint32_t number = mailbox.posted.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.consumed, number - 1, peer, deadline);
  return number;
}

void ShmMailboxes::post(std::int64_t peer, std::uint32_t number, const Chunk& chunk) {
  Mailbox& mailbox = mailbox_to(peer);
  mailbox.chunks[number % 2] = chunk;
  advance(mailbox.posted, number + 1);
}

void ShmMailboxes::wait_until_consumed(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = mailbox_to(peer);
  const std::uint32_t posted = mailbox.posted.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.consumed, posted, peer, deadline);
}

Chunk ShmMailboxes::wait_for_chunk(std::int64_t peer, const base::Deadline& deadline) {
  Mailbox& mailbox = mailbox_from(peer);
  const std::uint32_t number = mailbox.consumed.value.load(std::memory_order_relaxed);
  wait_for_count(mailbox.posted, number + 1, peer, deadline);
  return mailbox.chunks[number % 2];
}

void ShmMailboxes::consume(std::int64_t peer) {
  Futex& consumed = mailbox_from(peer).consumed;
  advance(consumed, consumed.value.load(std::memory_order_relaxed) + 1);
}

}  // namespace dtrain::comm
