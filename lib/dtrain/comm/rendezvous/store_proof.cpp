#include "dtrain/comm/rendezvous/store_proof.h"

#include <fmt/format.h>

#include "dtrain/comm/rendezvous/wire.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

std::string proof_of(std::string_view token, std::string_view who, const Exchange& exchange) {
  return net::hmac_sha256(token, net::MessageWriter()
                                     .text(kStoreGreeting)
                                     .text(who)
                                     .text(exchange.store_challenge)
                                     .text(exchange.rank_challenge)
                                     .number(exchange.rank)
                                     .number(exchange.size)
                                     .bytes());
}

std::string refusing_store(std::uint64_t kind, std::string_view message) {
  return fmt::format("store that refuses with {}: {}", kind, message);
}

}  // namespace dtrain::comm
