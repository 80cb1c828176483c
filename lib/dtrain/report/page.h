// A run report: one HTML page that needs nothing but itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/report/run_record.h"

namespace dtrain::report {

/// First characters of a page: a file that starts with them may be overwritten.
inline constexpr std::string_view kPageMark = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/// The style and the program of a page: page.css and page.js, which the build makes texts of.
extern const std::string_view kPageStyle;
extern const std::string_view kPageProgram;

/// The page's data, as docs/guide/views.md describes it.
///
/// version, written: who wrote the page and when, for people.
[[nodiscard]] Json page_data(const std::vector<RunRecord>& runs, const std::string& version,
                             const std::string& written);

/// The page. All text of the runs is data, which no browser takes for markup or a program.
[[nodiscard]] std::string page_of(const Json& data);

}  // namespace dtrain::report
