#include "dtrain/base/index.h"

#include <catch2/catch.hpp>
#include <concepts>
#include <memory>
#include <string>

namespace dtrain::base::index_test {
namespace {

using PageId = Index<struct PageTag>;
using LineId = Index<struct LineTag>;
using Pages = IndexedVector<PageId, std::string>;

template <typename Container, typename Id>
concept IndexedBy = requires(const Container& container, Id id) {
  container[id];
};

TEST_CASE("An id indexes containers of its own kind alone") {
  STATIC_REQUIRE(IndexedBy<Pages, PageId>);
  STATIC_REQUIRE_FALSE(IndexedBy<Pages, LineId>);
  STATIC_REQUIRE_FALSE(IndexedBy<Pages, std::int64_t>);
  STATIC_REQUIRE_FALSE(std::equality_comparable_with<PageId, LineId>);
  STATIC_REQUIRE_FALSE(std::convertible_to<std::int64_t, PageId>);
  STATIC_REQUIRE_FALSE(std::convertible_to<PageId, std::int64_t>);
}

TEST_CASE("Ids are counted and compared, like numbers") {
  PageId id;
  CHECK(++id == PageId(1));
  CHECK(--id < PageId(1));
  CHECK((PageId(7) + 2) - PageId(4) == 5);
  CHECK(PageId(7) - 2 == PageId(5));
}

TEST_CASE("A container hands out the ids of its elements") {
  Pages pages{"a", "b"};
  pages.push_back("c");
  std::string all;
  for (const PageId id : pages.ids()) all += pages[id];
  CHECK(all == "abc");
  CHECK(pages.end_id() == PageId(3));
  CHECK_THROWS_AS(pages[pages.end_id()], std::out_of_range);
  CHECK_THROWS_AS(pages[PageId(-1)], std::out_of_range);
}

TEST_CASE("A container holds what only moves, and truth values") {
  IndexedVector<PageId, std::unique_ptr<int>> owners;
  owners.push_back(std::make_unique<int>(5));
  CHECK(*owners[PageId(0)] == 5);
  IndexedVector<PageId, bool> flags(2);
  flags[PageId(1)] = true;
  CHECK(flags == IndexedVector<PageId, bool>{false, true});
}

}  // namespace
}  // namespace dtrain::base::index_test
