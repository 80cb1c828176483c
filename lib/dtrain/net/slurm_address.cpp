#include "dtrain/net/slurm_address.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/socket.h"

namespace dtrain::net {

namespace {

using base::ErrorKind;
using base::fail;

// SLURM's controller may be busy, or gone.
constexpr std::chrono::seconds kScontrolLimit(10);
constexpr std::size_t kMostPrinted = std::size_t{1} << 16;

/// What a host's name means on this machine.
struct Meaning {
  bool is_known = false;
  bool is_loopback = false;  ///< alone
  std::string why;           ///< of a name that is of no use
};

Meaning meaning_of(const std::string& host) {
  std::string why;
  const Addresses found = resolve(host, 0, why);
  if (!found) return {.why = why};
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    if (!is_loopback(numeric_text(*each->ai_addr, each->ai_addrlen))) {
      return {.is_known = true, .why = {}};
    }
  }
  return {.is_known = true, .is_loopback = true, .why = "it is the loopback address here"};
}

bool is_of_use(const Meaning& meaning) { return meaning.is_known && !meaning.is_loopback; }

/// Returns whether a shell takes the name as one plain word.
bool is_plain(const std::string& host) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return host.find_first_not_of(kPlain) == std::string::npos && !host.starts_with('-');
}

/// What `scontrol` prints about a node; empty where there is no such program, or no answer from
/// SLURM's controller.
std::string ask_scontrol(const std::string& host) {
  if (!is_plain(host)) return {};
  const std::string command =
      fmt::format("exec timeout -s KILL {} scontrol --oneliner show node {} 2>/dev/null",
                  kScontrolLimit.count(), host);
  const std::unique_ptr<FILE, int (*)(FILE*)> output(::popen(command.c_str(), "re"), &::pclose);
  if (!output) return {};
  std::string printed(kMostPrinted, '\0');
  printed.resize(std::fread(printed.data(), 1, printed.size(), output.get()));
  return printed;
}

}  // namespace

std::string node_address_in(const std::string& printed) {
  constexpr std::string_view kWord = " NodeAddr=";
  const auto at = printed.find(kWord);
  if (at == std::string::npos) return {};
  const auto start = at + kWord.size();
  return printed.substr(start, printed.find_first_of(" \n", start) - start);
}

std::string address_of_first_node(const base::SlurmStep& step) {
  if (!step.master_addr.empty()) return step.master_addr;
  std::string host = first_host_of(step);
  const Meaning own = meaning_of(host);
  if (is_of_use(own)) return host;
  // Debian maps a host's own name so. The others look for node 0 by what that name means to them,
  // and by such a name it listens at all its addresses.
  if (own.is_loopback && step.node == 0) return host;
  std::string told = node_address_in(ask_scontrol(host));
  const Meaning meaning = told.empty() ? Meaning{} : meaning_of(told);
  if (is_of_use(meaning)) return told;
  fail(ErrorKind::usage,
       "the ranks meet on {}, the first node of this step, but its address is unknown here: the "
       "name ({}); scontrol show node ({}); set MASTER_ADDR to an address of it that all nodes "
       "reach",
       base::printable(host), own.why,
       told.empty() ? "no NodeAddr" : fmt::format("{}: {}", base::printable(told), meaning.why));
}

}  // namespace dtrain::net
