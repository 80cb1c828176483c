// Builds a run report: one self-contained HTML page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/report/run_record.h"

namespace dtrain::report {

/// The first characters of every report page. `dtrain report` replaces files that begin with them
/// even without --overwrite.
inline constexpr std::string_view kPageMark = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/// The page's style and script: page.css and page.js, embedded by the build.
extern const std::string_view kPageStyle;
extern const std::string_view kPageProgram;

/// Returns the page's data (docs/guide/views.md).
///
/// version, written: dtrain's version, and when the page was written; for the footer.
[[nodiscard]] Json page_data(const std::vector<RunRecord>& runs, const std::string& version,
                             const std::string& written);

/// Returns the page. Text from runs is embedded as data, never as markup or script.
[[nodiscard]] std::string page_of(const Json& data);

}  // namespace dtrain::report
