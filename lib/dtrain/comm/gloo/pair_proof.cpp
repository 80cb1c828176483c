#include "dtrain/comm/gloo/pair_proof.h"

#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

constexpr std::int64_t kProofBytes = 32;

/// The proof that member `from` shows to member `to`; useless elsewhere or in another group.
std::string pair_proof(const GroupSecret& secret, std::int64_t from, std::int64_t to) {
  return net::hmac_sha256(secret.key, net::MessageWriter()
                                          .text("gloo")
                                          .text(secret.group)
                                          .number(static_cast<std::uint64_t>(from))
                                          .number(static_cast<std::uint64_t>(to))
                                          .bytes());
}

std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

}  // namespace

std::optional<std::int64_t> find_impostor(Link& link, const GroupSecret& secret,
                                          const base::Deadline& deadline) {
  const auto size = static_cast<std::size_t>(link.size());
  std::vector<std::string> own(size);
  std::vector<std::string> theirs(size, std::string(kProofBytes, '\0'));
  std::vector<Message> sent;
  std::vector<Message> received(size);
  for (std::int64_t peer = 0; peer < link.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == link.rank()) continue;
    received[index] = link.recv(bytes_of(theirs[index]), kProofBytes, peer, Tag::proof);
    own[index] = pair_proof(secret, link.rank(), peer);
    sent.push_back(link.send(bytes_of(own[index]), kProofBytes, peer, Tag::proof));
  }
  for (std::int64_t peer = 0; peer < link.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == link.rank()) continue;
    link.wait(received[index], deadline);
    if (!net::is_same_proof(theirs[index], pair_proof(secret, peer, link.rank()))) return peer;
  }
  link.wait(sent, deadline);
  return std::nullopt;
}

}  // namespace dtrain::comm
