#include "colossal/plan/prediction.h"

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"

namespace colossal::plan {

void PredictedCalls::fields(Fields& f) {
  f.member("group", group);
  f.member("collective", collective);
  f.member("phase", phase);
  f.member("calls", calls);
  f.count("bytes", bytes);
}

void PredictedLink::fields(Fields& f) {
  f.member("link", link);
  f.member("calls", calls);
  f.count("bytes", bytes);
}

void PredictedRole::fields(Fields& f) {
  f.member("name", name);
  f.member("ranks", ranks);
  f.member("first_rank", first_rank);
  f.member("peak_bytes", peak_bytes);
  f.member("resident_bytes", resident_bytes);
  f.member("fullest", fullest);
  f.member("kinds", kinds);
  f.optional().member("panels", panels);
  f.optional().member("cache", cache);
  f.member("recompute", recompute);
  f.member("calls", calls);
  f.member("links", links);
  f.member("seconds", seconds);
}

void Remedy::fields(Fields& f) {
  f.member("table", table);
  f.member("peak_bytes", peak_bytes);
  f.member("step_seconds", step_seconds);
  f.optional().member("training", training);
}

void PredictedNeed::fields(Fields& f) {
  f.member("what", what);
  f.member("place", place);
  f.member("bytes", bytes);
}

void PredictedModel::fields(Fields& f) {
  f.member("name", name);
  f.member("parameters", parameters);
  f.member("trained", trained);
  f.member("bytes", bytes);
  f.optional().member("needs", needs);
  f.optional().member("held", held);
}

void RankLoads::fields(Fields& f) {
  f.member("worst", worst);
  f.member("fitting", fitting);
  f.member("peak_bytes", peak_bytes);
}

void Prediction::fields(Fields& f) {  // predictions of older versions lack the optional members
  f.optional().count("parameters", parameters);
  f.optional().member("vocabulary", vocabulary);
  f.optional().member("models", models);
  f.member("ranks", ranks);
  f.member("fits", fits);
  f.member("limit", limit);
  f.member("step_seconds", step_seconds);
  f.member("peak_bytes", peak_bytes);
  f.optional().member("rank_load", rank_load);
  f.member("mfu", mfu);
  f.member("mfu_formula", mfu_formula);
  f.count("flops_per_token", flops_per_token);
  f.member("seconds", seconds);
  f.member("goodput", goodput);
  f.member("checkpoint_seconds", checkpoint_seconds);
  f.member("checkpoint_interval", checkpoint_interval);
  f.member("roles", roles);
  f.member("remedies", remedies);
  f.member("assumptions", assumptions);
}

std::string to_json(const Prediction& prediction) { return json_line(to_json_object(prediction)); }

Prediction parse_prediction(std::string_view text, const std::string& name) {
  const auto object = parse_ordered_json(text, name, "plan", {.distinct_names = true});
  require(object.is_object(), "plan", name,
          ": a prediction must be a JSON object, as `colossal plan --json` writes it");
  try {
    return read_stored<Prediction>(object, "plan");
  } catch (const Error& error) {
    throw Error("plan", concat(name, ": a prediction must have the members that `colossal plan --json` writes: ",
                               error.message(), "; write it again with this version"));
  }
}

}  // namespace colossal::plan
