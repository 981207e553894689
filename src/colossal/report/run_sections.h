// The parts of a report that are texts and tables. All of them return HTML.
#pragma once
#include <string>
#include <vector>

#include "colossal/report/config_keys.h"
#include "colossal/report/recorded_run.h"

namespace colossal::report {

/// What could not be read of the runs, and which of them have steps left; empty if there is nothing to say.
std::string missing_section(const std::vector<RecordedRun>& runs);

/// A row for each run: its number and colour in the charts, a check box that hides it, and its last values.
std::string runs_section(const std::vector<RecordedRun>& runs);

/// The switches of the charts: x axis, logarithmic y, smoothing.
std::string controls_section();

/// The samples of each run, newest first. Of more than 40 the page has 40, spread over the run; a text is cut at 20 KB.
std::string samples_section(const std::vector<RecordedRun>& runs);

/// The keys that differ between the runs, and those that differ from their defaults.
std::string keys_section(const std::vector<RecordedRun>& runs, const std::vector<ConfigKeyRow>& keys);

/// Every start of every run: when, how, by which version, with which command line.
std::string starts_section(const std::vector<RecordedRun>& runs);

/// "2026-11-24 10:31 UTC" of seconds since 1970.
std::string utc_time(double seconds);

}  // namespace colossal::report
