#include "colossal/infer/generate.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/infer/engine.h"

namespace colossal::infer {

std::vector<int64_t> generate(distributed::DistributedModel& model, Request request,
                              const std::function<bool(int64_t)>& emit) {
  Engine engine(model, {.alone = true});
  std::vector<int64_t> tokens;
  engine.add(std::move(request), [&](const Event& event) {
    require(event.finish_reason != FinishReason::Failed, "generate", event.error);
    if (!event.is_answer()) return;
    tokens.push_back(event.token);
    if (emit && !emit(event.token)) engine.drop(event.id);
  });
  while (engine.has_work()) engine.step();
  return tokens;
}

}  // namespace colossal::infer
