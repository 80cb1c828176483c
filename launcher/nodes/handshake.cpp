#include "launcher/nodes/handshake.h"

#include <fmt/format.h>

#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

namespace launcher {
namespace {

using dtrain::net::MessageWriter;

MessageWriter words_of(std::string_view who, const NodeExchange& exchange) {
  MessageWriter writer;
  writer.text(kNodeGreeting)
      .text(who)
      .text(exchange.host_challenge)
      .text(exchange.guest_challenge)
      .text(exchange.hello);
  return writer;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

std::string guest_proof(std::string_view token, const NodeExchange& exchange) {
  return dtrain::net::hmac_sha256(token, words_of("guest", exchange).bytes());
}

std::string host_proof(std::string_view token, const NodeExchange& exchange, NodeReply reply,
                       int kind, std::string_view text) {
  return dtrain::net::hmac_sha256(token, words_of("host", exchange)
                                             .number(static_cast<std::uint64_t>(reply))
                                             .number(static_cast<std::uint64_t>(kind))
                                             .text(text)
                                             .bytes());
}

std::string derived_rank_token(std::string_view token, std::string_view run_id) {
  return hexadecimal(dtrain::net::hmac_sha256(
      token, MessageWriter().text(kNodeGreeting).text("ranks").text(run_id).bytes()));
}

std::string random_rank_token() { return hexadecimal(dtrain::net::new_challenge()); }

}  // namespace launcher
