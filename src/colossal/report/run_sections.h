// The sections of a report that are texts and tables. All functions return HTML, except utc_time().
#pragma once
#include <string>
#include <vector>

#include "colossal/report/config_keys.h"
#include "colossal/report/recorded_run.h"

namespace colossal::report {

/// Returns the list of records that could not be read, and of runs that are not finished; empty if there are none.
std::string missing_section(const std::vector<RecordedRun>& runs);

/// Returns a table with a row per run: its number and colour in the charts, a check box that hides it, and its last
/// values.
std::string runs_section(const std::vector<RecordedRun>& runs);

/// Returns the controls of the charts: x axis, logarithmic y, smoothing.
std::string controls_section();

/// Returns the samples of each run, newest first. At most 40 per run are shown, spread over the run; a text is cut at
/// 20 KB.
std::string samples_section(const std::vector<RecordedRun>& runs);

/// Returns the keys that differ between the runs, and the keys that differ from their defaults.
std::string keys_section(const std::vector<RecordedRun>& runs, const std::vector<ConfigKeyRow>& keys);

/// Returns all starts of all runs: time, kind, version and command line.
std::string starts_section(const std::vector<RecordedRun>& runs);

/// Returns the time `seconds` after 1970, e.g. "2026-11-24 10:31 UTC".
std::string utc_time(double seconds);

}  // namespace colossal::report
