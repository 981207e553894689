#include "colossal/base/known_metrics.h"

#include <algorithm>
#include <array>

#include "colossal/base/error.h"

namespace colossal {
namespace {

/// A Metric without its value. It consists of literals, so the table needs no code at program start.
struct KnownMetric {
  const char *name, *unit, *plot, *legend, *tag, *line;
};

// The rows are in the order of a line of metrics.jsonl. The rows "tokens" and "seconds" have the tag "-", because the
// report page uses them as x axes and TensorBoard has its own axes.
constexpr std::array kKnown{
    KnownMetric{"loss", "nats", "Loss", "training loss", "", "loss %.4f"},
    KnownMetric{"learning_rate", "", "Learning rate", "learning rate", "", "lr %.2e"},
    KnownMetric{"grad_norm", "", "Gradient norm", "gradient norm", "", "norm %.3f"},
    KnownMetric{"tokens", "tokens", "", "", "-", ""},
    KnownMetric{"tokens_per_second", "tokens/s", "Tokens per second", "tokens per second", "speed/tokens_per_second",
                "%.0f tokens/s"},
    KnownMetric{"mfu", "share", "Share of the peak", "model FLOPs", "speed/mfu", ""},
    KnownMetric{"peak_bytes", "bytes", "Peak memory of a rank", "peak memory", "speed/peak_gigabytes", ""},
    KnownMetric{"seconds", "s", "Step time", "step time", "-", ""},
    KnownMetric{"tiers.host_bytes", "bytes", "Parameters, gradients and states", "host memory", "memory/host_gigabytes",
                "host %s"},
    KnownMetric{"tiers.disk_bytes", "bytes", "Parameters, gradients and states", "disk alone", "memory/disk_gigabytes",
                "disk %s"},
    KnownMetric{"tiers.bytes_read", "bytes", "Moved in a step", "read from the disk", "memory/read_gigabytes",
                "moved %s"},
    KnownMetric{"tiers.bytes_written", "bytes", "Moved in a step", "written to the disk", "memory/written_gigabytes",
                "moved %s"},
    KnownMetric{"tiers.device_model_bytes", "bytes", "Largest device of a rank", "parameters and states",
                "memory/device_model_gigabytes", ""},
    KnownMetric{"tiers.device_peak_bytes", "bytes", "Largest device of a rank", "all", "memory/device_peak_gigabytes",
                "device %s"},
    KnownMetric{"tiers.device_bytes_in", "bytes", "Copied in a step", "to devices", "memory/device_in_gigabytes",
                "copied %s"},
    KnownMetric{"tiers.device_bytes_out", "bytes", "Copied in a step", "from devices", "memory/device_out_gigabytes",
                "copied %s"},
    KnownMetric{"stall_seconds", "s", "", "", "speed/stall_seconds", ""},
    KnownMetric{"expert_load", "", "Load of experts", "busiest expert", "experts/expert_load", "load %.2f"},
    KnownMetric{"rank_load", "", "Load of experts", "busiest rank", "experts/rank_load", "of ranks %.2f"},
    KnownMetric{"dropped_share", "share", "Dropped assignments", "dropped", "experts/dropped_share", "dropped %.1f %%"},
    KnownMetric{"balance_loss", "", "Balance loss", "balance loss", "experts/balance_loss", "balance %.4f"},
    KnownMetric{"chosen_reward", "", "Rewards of answers", "chosen or desirable", "preferences/chosen_reward", ""},
    KnownMetric{"rejected_reward", "", "Rewards of answers", "rejected or undesirable", "preferences/rejected_reward",
                ""},
    KnownMetric{"margin", "", "Margin of rewards", "training", "preferences/margin", "margin %.3f"},
    KnownMetric{"preference_accuracy", "share", "Preferences that the rewards share", "training",
                "preferences/accuracy", "preferred %.1f %%"},
    KnownMetric{"reward", "", "Rewards", "mean score", "rollouts/reward", "reward %.3f"},
    KnownMetric{"reward_deviation", "", "Rewards", "standard deviation", "rollouts/reward_deviation", ""},
    KnownMetric{"kl", "nats", "Divergence from the reference", "estimate per token", "rollouts/kl", "kl %.4f"},
    KnownMetric{"kl_weight", "", "Weight of the divergence", "", "rollouts/kl_weight", ""},
    KnownMetric{"entropy", "nats", "Entropy", "mean of drawn tokens", "rollouts/entropy", "entropy %.2f"},
    KnownMetric{"value_loss", "", "Loss of the value model", "training", "rollouts/value_loss", ""},
    KnownMetric{"sampler_difference", "nats", "Difference of drawing and training", "largest of a token",
                "rollouts/sampler_difference", ""},
    KnownMetric{"clipped_share", "share", "Shares of tokens and answers", "clipped tokens", "rollouts/clipped_share",
                ""},
    KnownMetric{"truncated_share", "share", "Shares of tokens and answers", "truncated answers",
                "rollouts/truncated_share", ""},
    KnownMetric{"answer_tokens", "tokens", "Tokens of an answer", "mean", "rollouts/answer_tokens", "%.1f tokens each"},
    KnownMetric{"zero_spread_groups", "", "Groups without spread", "", "rollouts/zero_spread_groups", ""},
    KnownMetric{"unscored_answers", "", "Answers without a score", "", "rollouts/unscored_answers", ""},
    KnownMetric{"draw_seconds", "s", "Time of rollouts", "drawing", "rollouts/draw_seconds", ""},
    KnownMetric{"score_seconds", "s", "Time of rollouts", "waiting for scores", "rollouts/score_seconds", ""},
    KnownMetric{"divergence", "nats", "Divergence from the reference", "training", "preferences/divergence", ""},
    KnownMetric{"eval_loss", "nats", "Loss", "evaluation loss", "eval/loss", "held-out %.4f"},
    KnownMetric{"perplexity", "", "", "", "eval/perplexity", ""},
    KnownMetric{"accuracy", "share", "Held-out accuracy", "held-out accuracy", "eval/accuracy", "accuracy %.1f %%"},
    KnownMetric{"eval_chosen_reward", "", "Rewards of held-out answers", "chosen or desirable", "eval/chosen_reward",
                ""},
    KnownMetric{"eval_rejected_reward", "", "Rewards of held-out answers", "rejected or undesirable",
                "eval/rejected_reward", ""},
    KnownMetric{"eval_margin", "", "Margin of rewards", "held out", "eval/margin", "held-out margin %.3f"},
    KnownMetric{"eval_preference_accuracy", "share", "Preferences that the rewards share", "held out",
                "eval/preference_accuracy", "held-out preferred %.1f %%"},
    KnownMetric{"eval_divergence", "nats", "Divergence from the reference", "held out", "eval/divergence", ""},
};

}  // namespace

std::optional<Metric> find_known_metric(std::string_view name) {
  const auto row = std::find_if(kKnown.begin(), kKnown.end(), [&](const auto& known) { return known.name == name; });
  if (row == kKnown.end()) return std::nullopt;
  return Metric{.name = row->name,
                .value = int64_t{0},
                .unit = row->unit,
                .plot = row->plot,
                .legend = row->legend,
                .tag = row->tag,
                .line = row->line};
}

Metric known_metric(std::string_view name, Metric::Value value) {
  std::optional<Metric> metric = find_known_metric(name);
  require(metric.has_value(), "metrics", "`", name, "` must be a metric of base/known_metrics.cpp; add its row there");
  metric->value = value;
  return *std::move(metric);
}

}  // namespace colossal
