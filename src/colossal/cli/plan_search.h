// The form of `colossal plan` that looks for the fastest layout.
#pragma once
#include <string>

#include "colossal/cli/plan_wishes.h"
#include "colossal/predict/search.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal plan CONFIG --search`, and `colossal plan CONFIG` of a file with [parallel] auto: prints the layouts that
/// fit, the fastest first. With --json one object: the prediction of the fastest with the member `best`.
/// Returns the exit status. Errors: those of resolve_plan() (cli/planned_run.h) and predict::search().
int plan_search(const PlanWishes& wishes, const run::Program* program);

/// Returns true if the command line or parallel.auto of the config asks for a search. Errors: those of
/// run::read_given_config().
bool wants_search(const PlanWishes& wishes);

/// Returns the layouts as a table with a line for each, and the TOML of the fastest.
std::string to_text(const predict::SearchResult& found);
/// Returns the prediction of the fastest layout as JSON, with the member `best`: a list of objects with step_seconds,
/// peak_bytes, why and table.
std::string to_json(const predict::SearchResult& found);

}  // namespace colossal::cli
