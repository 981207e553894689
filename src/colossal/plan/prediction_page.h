// The page of `colossal plan CONFIG --report FILE`: a predicted step as drawings and tables.
//
//   const plan::StepTimeline step = plan::simulate_step(roles, costs);
//   write_file("plan.html", plan::prediction_page(prediction, {.title = "gpt2.toml on h100-8x", .roles = roles,
//                                                              .step = step, .memory = memories}));
#pragma once
#include <string>
#include <vector>

#include "colossal/base/step_memory.h"
#include "colossal/plan/prediction.h"
#include "colossal/plan/step_picture.h"
#include "colossal/plan/timeline.h"

namespace colossal::plan {

/// Contents of the page in addition to the prediction. The references must be valid during prediction_page().
struct PageContent {
  std::string title;
  const std::vector<Role>& roles;         ///< in the order of Prediction::roles
  const StepTimeline& step;               ///< simulate_step() of `roles`
  const std::vector<StepMemory>& memory;  ///< of each role; empty = no drawing of memory
  std::vector<MemoryLimit> limits{};      ///< of one rank
  /// Time that a long run loses to failures and late ranks (describe_failures()); empty = not shown
  std::string failures{};
};

/// The most roles that are drawn. The tables have all roles.
inline constexpr size_t kDrawnRoles = 64;

/// Returns a self-contained HTML page in the style of report.html: it loads no other file, has no script, follows the
/// light or dark setting of the browser, and shows details as tooltips.
/// Size: at most about 5 MB for 64 roles of 8 streams, whatever the number of events.
/// Errors ("plan"): the roles of `content.step`, or of its memory if there is any, are not as many as `content.roles`.
std::string prediction_page(const Prediction& prediction, const PageContent& content);

}  // namespace colossal::plan
