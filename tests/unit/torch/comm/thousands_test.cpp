// Traffic of a job of thousands of ranks while it starts and saves, counted on the production code
// of the ranks and the store, without the processes.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/internal/gloo/gloo_record.h"
#include "dtrain/comm/internal/host/host_topology.h"
#include "dtrain/comm/internal/rendezvous/job_store.h"
#include "dtrain/comm/internal/rendezvous/store_client.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "support/ranks/stub_group.h"

namespace dtrain::testing::thousands_test {
namespace {

constexpr std::int64_t kRanks = 4096;
constexpr std::int64_t kPerHost = 8;
constexpr std::int64_t kHosts = kRanks / kPerHost;

void tell(const std::string& text) { std::puts(text.c_str()); }

/// Traffic on the wire; bytes include frames.
struct Traffic {
  std::int64_t requests = 0;
  std::int64_t largest_request = 0;
  std::int64_t largest_answer = 0;
  std::int64_t sent_by_store = 0;

  void add(const Traffic& other) {
    requests += other.requests;
    largest_request = std::max(largest_request, other.largest_request);
    largest_answer = std::max(largest_answer, other.largest_answer);
    sent_by_store += other.sent_by_store;
  }
};

/// Rank 0's store, driven as by its server.
class Store {
 public:
  using Value = std::function<std::string(std::int64_t rank)>;

  Traffic all_gather(const std::string& key, const std::vector<std::int64_t>& members,
                     const Value& value) {
    Traffic traffic;
    for (const std::int64_t rank : members) {
      const std::string request =
          comm::gather_request(key, members, value(rank), std::chrono::minutes(5));
      ++traffic.requests;
      const auto bytes = static_cast<std::int64_t>(net::framed(request).size());
      traffic.largest_request = std::max(traffic.largest_request, bytes);
      hear(request, rank);
    }
    REQUIRE_FALSE(store_.failure());
    const std::string* values = store_.values(key);
    REQUIRE(values != nullptr);
    const auto result = comm::unpacked_result(*values);
    REQUIRE(result);
    REQUIRE(result->values.size() == members.size());
    for (std::size_t index = 0; index < members.size(); index += 97) {
      REQUIRE(result->values[index] == value(members[index]));
    }
    traffic.largest_answer = static_cast<std::int64_t>(
        net::framed(net::MessageWriter().number(1).text(*values).bytes()).size());
    traffic.sent_by_store = traffic.largest_answer * traffic.requests;
    return traffic;
  }

 private:
  void hear(const std::string& request, std::int64_t rank) {
    net::MessageReader reader(request);
    REQUIRE(reader.number() == static_cast<std::uint64_t>(comm::StoreRequest::gather));
    const std::string key = reader.text();
    (void)reader.number();
    std::string value = reader.text();
    const auto members = comm::read_ranks(reader, kRanks);
    REQUIRE(members);
    store_.join_gather(key, *members, rank, std::move(value));
  }

  comm::JobStore store_{kRanks};
};

void show(const std::string& what, const Traffic& traffic) {
  tell(
      fmt::format("{:24} {:6} requests of at most {:4} bytes, answers of {:7}, {:5.1f} MiB from "
                  "rank 0",
                  what, traffic.requests, traffic.largest_request, traffic.largest_answer,
                  static_cast<double>(traffic.sent_by_store) / (1 << 20)));
}

std::string address(std::int64_t host, bool is_v6) {
  return net::address_bytes(is_v6 ? fmt::format("fd77::{:x}", host + 1)
                                  : fmt::format("10.20.{}.{}", host / 256, host % 256));
}

// As host_of_process and open_listen_socket name them.
std::string host_name(std::int64_t host) { return fmt::format("{:036} net:[4026531840]", host); }
std::string socket_name(std::int64_t rank) { return fmt::format("dtrain-{}-{:032x}", rank, rank); }

/// The rendezvous, and the discovery of hosts; hosts: of each rank.
void gather_on_hosts(const std::function<void(const std::string&, const Store::Value&)>& gather,
                     const std::vector<std::int64_t>& hosts, bool is_v6) {
  const auto host_of = [&](std::int64_t rank) { return hosts[static_cast<std::size_t>(rank)]; };
  std::vector<comm::HostInfo> hosts_info;
  for (const std::int64_t host : hosts) {
    hosts_info.push_back({.host = comm::host_digest(host_name(host)), .obstacle = {}});
  }
  gather("the job", [&](std::int64_t rank) { return address(host_of(rank), is_v6); });
  gather("shared memory", [&](std::int64_t rank) {
    return comm::packed(hosts_info[static_cast<std::size_t>(rank)]);
  });
  if (std::ranges::max(comm::hosts_of(hosts_info)) + 1 == std::ssize(hosts)) return;
  gather("first ranks", [&](std::int64_t rank) {
    const bool is_first = std::ranges::find(hosts, host_of(rank)) - hosts.begin() == rank;
    const bool is_alone = std::ranges::count(hosts, host_of(rank)) == 1;
    return is_first && !is_alone ? socket_name(rank) : "";
  });
  gather("one host", [](std::int64_t) { return ""; });
}

/// The host of each rank, with `per_host` ranks on each.
std::vector<std::int64_t> even_hosts(std::int64_t num_ranks, std::int64_t per_host) {
  std::vector<std::int64_t> hosts = comm::ranks_below(num_ranks);
  for (std::int64_t& each : hosts) each /= per_host;
  return hosts;
}

TEST_CASE("4,096 ranks join with one short request each, and receive one value per host") {
  Store store;
  const auto all = comm::ranks_below(kRanks);
  Traffic sum;
  const auto gather = [&](const std::string& key, const Store::Value& value) {
    const Traffic traffic = store.all_gather(key, all, value);
    show(key, traffic);
    CHECK(traffic.requests == kRanks);
    CHECK(traffic.largest_request < 256);
    CHECK(traffic.largest_answer < 100 + 50 * kHosts);
    sum.add(traffic);
  };
  gather_on_hosts(gather, even_hosts(kRanks, kPerHost), false);
  show("all gathers", sum);
  CHECK(sum.requests == 4 * kRanks);
  CHECK(sum.sent_by_store < kRanks * kHosts * 100);
}

struct Shape {
  const char* name;
  mesh::MeshShape sizes;
  std::int64_t shard_size;
};

TEST_CASE("The groups of 4,096 ranks take a request for each rank and group, and short lists") {
  const Shape shape = GENERATE(
      Shape{"ddp", {{mesh::Axis::dp, kRanks}}, 1},
      Shape{"fsdp", {{mesh::Axis::dp, kRanks}}, kRanks},
      Shape{"hybrid of 8", {{mesh::Axis::dp, kRanks}}, 8},
      Shape{"3d 8 x 64 x 8", {{mesh::Axis::pp, 8}, {mesh::Axis::dp, 64}, {mesh::Axis::tp, 8}}, 8});
  const mesh::DeviceMesh mesh(shape.sizes);
  mesh::MeshSubgroups cuts{.shard_size = shape.shard_size};
  if (mesh.size(mesh::Axis::pp) > 1) cuts.stages.assign(8, {0, 7});
  Store store;
  Traffic sum;
  std::int64_t list_bytes = 0;
  std::int64_t groups = 0;
  const auto kinds = mesh::group_kinds(mesh, cuts, false);
  for (const mesh::GroupKind& kind : kinds) {
    for (const mesh::Ranks& line : kind.groups) {
      list_bytes += static_cast<std::int64_t>(sizeof line + line.size() * sizeof line.front());
      if (kind.is_axis || line.size() < 2) continue;
      const std::string key = fmt::format("group {} '{}'", groups++, kind.name);
      sum.add(store.all_gather(key, line, [&](std::int64_t rank) {
        return rank == line.front() ? "123456789" : "here";
      }));
    }
  }
  show(shape.name, sum);
  tell(fmt::format("{:24} {} groups, rank lists of {} KiB in each rank", "", groups,
                   list_bytes / 1024));
  CHECK(sum.requests <= kRanks * std::ssize(kinds));
  CHECK(sum.largest_request < 200);
  CHECK(sum.largest_answer < 200);
  CHECK(list_bytes <= 40 * kRanks * std::ssize(kinds));
}

// --- gloo ---------------------------------------------------------------------------------------

constexpr std::int64_t kGlooRanks = 1024;

/// A rank's record in a group of `size`, as GlooGroups parses it.
comm::GlooRecord gloo_record(std::int64_t rank, const std::string& address,
                             std::int64_t first_number, std::int64_t size) {
  const std::string port{static_cast<char>(rank >> 8), static_cast<char>(rank)};
  const auto num_members = static_cast<std::size_t>(size);
  return comm::parse_record(
      comm::record_bytes({.endpoint = port + address, .first_number = first_number}, num_members),
      num_members);
}

/// The exchanges until gloo has connected the control plane and ddp's group.
void connect_by_gloo(const std::function<void(const std::string&, const Store::Value&)>& gather,
                     const std::vector<std::int64_t>& hosts, bool is_v6) {
  const auto record = [&](std::int64_t rank, std::int64_t first_number, std::int64_t size) {
    const std::string own = address(hosts[static_cast<std::size_t>(rank)], is_v6);
    return gloo_record(rank, own, first_number, size);
  };
  gather("gloo's addresses", [&](std::int64_t rank) { return record(rank, 0, 1).endpoint; });
  const std::string key = net::new_challenge();
  gather("gloo's key", [&](std::int64_t rank) { return rank == 0 ? key : std::string(); });
  for (const std::int64_t first : {std::int64_t{1}, 1 + kGlooRanks}) {
    gather(fmt::format("group {}", first), [&](std::int64_t rank) {
      return std::to_string(record(rank, first, kGlooRanks).first_number);
    });
  }
}

TEST_CASE("Rank 0 answers at most 64 KiB to each of 1,024 ranks that gloo connects") {
  constexpr std::int64_t kMost = 64 << 10;
  const bool is_v6 = GENERATE(false, true);
  const bool shares_memory = GENERATE(false, true);  // with --backend auto and hier
  std::vector<std::int64_t> uneven = even_hosts(kGlooRanks, 1);
  uneven[1] = uneven[0];
  const auto hosts = GENERATE_COPY(even_hosts(kGlooRanks, 1), even_hosts(kGlooRanks, 2), uneven);
  Store store;
  const auto all = comm::ranks_below(kGlooRanks);
  Traffic sum;
  std::int64_t answered = 0;
  const auto gather = [&](const std::string& key, const Store::Value& value) {
    const Traffic traffic = store.all_gather(key, all, value);
    answered += traffic.largest_answer;
    sum.add(traffic);
  };
  if (shares_memory) {
    gather_on_hosts(gather, hosts, is_v6);
  } else {
    gather("the job", [&](std::int64_t rank) {
      return address(hosts[static_cast<std::size_t>(rank)], is_v6);
    });
  }
  connect_by_gloo(gather, hosts, is_v6);
  show(fmt::format("gloo, 1,024 of IPv{}", is_v6 ? 6 : 4), sum);
  tell(fmt::format("{:24} {} bytes to each rank", "", answered));
  CHECK(answered <= kMost);
}

// --- a save --------------------------------------------------------------------------------------

/// A group in which every rank behaves as this one; counts its traffic and memory.
class CountingGroup final : public StubGroup {
 public:
  explicit CountingGroup(std::int64_t rank) : rank_(rank) {}

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t size() const override { return kRanks; }
  [[nodiscard]] comm::Work post(comm::Operation operation) override {
    const auto [input, output] = comm::tensors_of(operation);
    if (output->numel() > 0) {
      output->view({kRanks, -1}).copy_(input->view({1, -1}).expand({kRanks, -1}));
    }
    const auto own = static_cast<std::int64_t>(input->nbytes());
    held += static_cast<std::int64_t>(output->nbytes());
    if (std::holds_alternative<comm::AllGather>(operation)) {
      sent += own * (kRanks - 1);
    } else {  // an all-to-all to rank 0 alone
      held += own;
      sent += rank_ == 0 ? 0 : own;
    }
    return {};
  }

  std::int64_t held = 0;
  std::int64_t sent = 0;

 private:
  std::int64_t rank_;
};

/// A rank's list for a model of 25 tensors with two moments each, of which it has a share.
checkpoint::format::Contents example_list() {
  checkpoint::format::Contents contents;
  checkpoint::format::FileInfo file{
      .name = "rank-0123-of-4096.safetensors", .bytes = 1 << 20, .pieces = {}};
  for (int tensor = 0; tensor < 75; ++tensor) {
    const std::string name = fmt::format("levels.{}.encoder.moment", tensor);
    contents.tensors[name] = {.dtype = {}, .shape = {65'536, 256}};
    file.pieces.push_back(
        {.tensor = name, .box = {.offsets = {16, 0}, .sizes = {16, 256}}, .checksum = 1});
  }
  contents.files.push_back(file);
  return contents;
}

TEST_CASE("A save of 4,096 ranks gathers their lists at rank 0 alone") {
  const std::string text = checkpoint::format::to_text(example_list());
  const auto own = static_cast<std::int64_t>(text.size());
  CountingGroup first(0);
  CountingGroup other(77);
  const auto lists = comm::gather_texts(first, text);
  CHECK(comm::gather_texts(other, text).empty());
  REQUIRE(std::ssize(lists) == kRanks);
  CHECK(lists.back() == text);
  tell(
      fmt::format("a rank's list has {} bytes; rank 0 holds {} KiB, every other {} KiB and sends "
                  "{} KiB; each with all lists would hold {} MiB",
                  own, first.held >> 10, other.held >> 10, other.sent >> 10, own * kRanks >> 20));
  CHECK(other.held <= 8 * kRanks + own);
  CHECK(other.sent <= 8 * kRanks + own);
  CHECK(first.held <= (8 + own) * kRanks + own);
}

}  // namespace
}  // namespace dtrain::testing::thousands_test
