#include "dtrain/parallel/engine/fixed_places.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "dtrain/device/graph.h"

namespace dtrain::parallel {
namespace {

struct Place {
  at::Tensor memory;  // (bytes) uint8
  bool is_taken = false;
};

using Places = std::map<std::int64_t, std::deque<Place>>;  // by bytes

// Until the last view of a taken place ends.
struct Lease {
  std::shared_ptr<Places> places;
  Place* place;

  ~Lease() { place->is_taken = false; }
};

at::Tensor leased(std::unique_ptr<Lease> lease) {
  const at::Tensor& memory = lease->place->memory;
  return device::borrowed(memory, lease.release(),
                          [](void* owned) { delete static_cast<Lease*>(owned); });
}

}  // namespace

param::ArenaAllocator with_fixed_places(param::ArenaAllocator allocate) {
  return [allocate = std::move(allocate),
          places = std::make_shared<Places>()](std::int64_t bytes) -> at::Tensor {
    const at::NoGradGuard no_grad;
    std::deque<Place>& all = (*places)[bytes];
    const auto free = std::ranges::find(all, false, &Place::is_taken);
    if (free != all.end()) free->memory.zero_();
    Place& place = free != all.end() ? *free : all.emplace_back(Place{allocate(bytes)});
    place.is_taken = true;
    return leased(std::make_unique<Lease>(places, &place));
  };
}

}  // namespace dtrain::parallel
