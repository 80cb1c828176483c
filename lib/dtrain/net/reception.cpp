#include "dtrain/net/reception.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/net/message.h"
#include "dtrain/net/packet.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/tcp_owner.h"

namespace dtrain::net {

using base::Clock;

void Reception::add_to(std::vector<pollfd>& polled) const {
  for (const base::Descriptor& each : options_.listeners) {
    polled.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
  }
  for (const Stranger& each : strangers_) polled.push_back(each.guest.stream.polled());
}

Clock::time_point Reception::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const Stranger& each : strangers_) next = std::min(next, each.patience);
  return arrived_.empty() ? next : Clock::now();  // an error came between them and the caller
}

std::vector<Reception::Guest> Reception::serve(std::span<const pollfd> polled) {
  const std::size_t listeners = options_.listeners.size();
  for (std::size_t index = listeners; index < polled.size(); ++index) {
    if (polled[index].revents != 0) hear(strangers_[index - listeners]);
  }
  for (std::size_t index = 0; index < listeners; ++index) {
    if (polled[index].revents != 0) accept_at(index);
  }
  const auto now = Clock::now();
  for (Stranger& each : strangers_) {
    each.guest.stream.flush();
    if (now >= each.patience) each.is_over = true;
  }
  std::erase_if(strangers_, [](const Stranger& each) { return each.is_over; });
  return std::exchange(arrived_, {});
}

void Reception::accept_at(std::size_t index) {
  // Without the listener if this throws: what cannot be taken would be there again at once.
  base::Descriptor listener = std::exchange(options_.listeners[index], base::Descriptor());
  base::Descriptor socket = accept_connection(listener, [this] { return drop_a_stranger(); });
  options_.listeners[index] = std::move(listener);
  if (!socket) return;
  if (options_.seals_secret) return greet(std::move(socket), Trust::munge);
  if (!options_.secret.empty()) return greet(std::move(socket), Trust::token);
  const auto user = user_of_tcp_peer(socket.get());
  if (user && *user != ::geteuid()) {
    last_turned_away_ =
        fmt::format("a process of user {} was turned away: it needs the job's secret", *user);
    return;
  }
  greet(std::move(socket), Trust::same_user);
  if (user) return;
  // Of another machine: it was greeted, so that it can say what is missing.
  strangers_.back().is_over = true;
  last_turned_away_ = "a process on another machine was turned away: there is no secret";
}

// The one that has been here longest; false: there is none.
bool Reception::drop_a_stranger() {
  const auto first = std::ranges::find(strangers_, false, &Stranger::is_over);
  if (first == strangers_.end()) return false;
  first->is_over = true;
  first->guest.stream.socket.reset();
  return true;
}

void Reception::greet(base::Descriptor socket, Trust trust) {
  const auto count = std::ranges::count(strangers_, false, &Stranger::is_over);
  if (static_cast<std::size_t>(count) >= options_.most_strangers) (void)drop_a_stranger();
  Stranger stranger{.guest = {.stream = {.socket = std::move(socket)},
                              .exchange = {.greeting = options_.greeting},
                              .trust = trust}};
  stranger.patience =
      trust == Trust::handed_down ? Clock::time_point::max() : Clock::now() + options_.patience;
  stranger.guest.exchange.host_challenge = new_challenge();
  std::string credential;
  std::string problem;
  // A guest that can open none says so.
  if (trust == Trust::munge) credential = seal_for_own_user(options_.secret, problem).value_or("");
  stranger.guest.stream.output = offer_message(trust, stranger.guest.exchange, credential);
  stranger.guest.stream.flush();
  strangers_.push_back(std::move(stranger));
}

void Reception::hear(Stranger& stranger) {
  if (stranger.is_over) return;
  FramedStream& stream = stranger.guest.stream;
  const bool is_closed = stream.receive() == Transfer::closed;
  if (const auto message = stream.input.take_message()) return hear_hello(stranger, *message);
  stranger.is_over = is_closed || stream.input.is_broken();
}

void Reception::hear_hello(Stranger& stranger, const std::string& message) {
  stranger.is_over = true;  // no stranger any more, or a liar
  Guest& guest = stranger.guest;
  MessageReader reader(message);
  guest.exchange.guest_challenge = reader.text();
  guest.exchange.hello = reader.text();
  const std::string proof = reader.text();
  if (!reader.is_whole()) return;
  if (needs_proof(guest.trust) &&
      !is_same_proof(proof, guest_proof(options_.secret, guest.exchange))) {
    last_turned_away_ = "a process with another secret was turned away";
    guest.stream.send(reply_message({.answer = Answer::unknown}, ""));
    return;
  }
  arrived_.push_back(std::move(guest));
}

void Reception::answer(Guest& guest, Reply reply) const {
  reply.text.resize(std::min<std::size_t>(reply.text.size(), kMostHandshakeBytes / 2));
  const bool proves = needs_proof(guest.trust);
  guest.stream.send(
      reply_message(reply, proves ? host_proof(options_.secret, guest.exchange, reply) : ""));
}

std::vector<base::Descriptor> Reception::close() {
  strangers_.clear();
  return std::exchange(options_.listeners, {});
}

}  // namespace dtrain::net
