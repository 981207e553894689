#include "colossal/train/run_output.h"

#include "colossal/base/error.h"

namespace colossal::train {

RunOutput::RunOutput(const RunFolder& folder, std::optional<int64_t> resumed_after, int64_t steps, const Log& log,
                     ProgressStyle style)
    : log_(log),
      metrics_(folder.metrics(), folder.metric_names(), resumed_after),
      events_(folder.tensorboard(), resumed_after),
      records_(folder.history(), folder.ranks(), !resumed_after),
      progress_("step", steps, stderr, style) {}

void RunOutput::write(const report::StepMetrics& metrics, const report::RankMetrics& ranks) {
  metrics_try_.run(log_, [&] { metrics_.write(metrics); });
  record(ranks);
  events_try_.run(log_, [&] { events_.write(metrics); });
  progress_.update(metrics.step(), report::progress_line(metrics));
}

void RunOutput::Tolerated::run(const Log& log, const std::function<void()>& work) {
  try {
    work();
    if (fails_) log.info("writing works again after an earlier failure: ", message_);
    fails_ = false;
  } catch (const Error& error) {
    message_ = error.what();
    if (!fails_)
      log.warning(message_, "; training continues, and the missing data is written as soon as writing works again");
    fails_ = true;
  }
}

}  // namespace colossal::train
