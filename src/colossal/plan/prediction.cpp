#include "colossal/plan/prediction.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::plan {
namespace {

using PredictionJson = nlohmann::ordered_json;

constexpr double kExactIntegers = 9007199254740992;  // 2^53

/// Returns a count as an integer, as long as a double holds it exactly.
PredictionJson count_json(double count) {
  if (count == std::floor(count) && std::abs(count) <= kExactIntegers) return static_cast<int64_t>(count);
  return count;
}

PredictionJson seconds_json(const StepParts& parts) {
  return {{"compute", parts.compute},
          {"communication", parts.communication},
          {"bubble", parts.bubble},
          {"optimizer", parts.optimizer},
          {"input", parts.input}};
}

PredictionJson kinds_json(const StepMemory::Kinds& kinds) {
  return {{"parameters", kinds.parameters},   {"gradients", kinds.gradients}, {"states", kinds.states},
          {"activations", kinds.activations}, {"buffers", kinds.buffers},     {"host", kinds.host}};
}

PredictionJson role_json(const PredictedRole& role) {
  PredictionJson calls = PredictionJson::array(), links = PredictionJson::array();
  for (const PredictedCalls& row : role.calls)
    calls.push_back({{"group", row.group},
                     {"collective", row.collective},
                     {"phase", row.phase},
                     {"calls", row.calls},
                     {"bytes", count_json(row.bytes)}});
  for (const PredictedLink& row : role.links)
    links.push_back({{"link", row.link}, {"calls", row.calls}, {"bytes", count_json(row.bytes)}});
  return {{"name", role.name},
          {"ranks", role.ranks},
          {"first_rank", role.first_rank},
          {"peak_bytes", role.peak_bytes},
          {"resident_bytes", role.resident_bytes},
          {"fullest", role.fullest},
          {"kinds", kinds_json(role.kinds)},
          {"recompute", role.recompute},
          {"calls", std::move(calls)},
          {"links", std::move(links)},
          {"seconds", seconds_json(role.seconds)}};
}

PredictionJson loads_json(const RankLoads& loads) {
  return {{"worst", loads.worst}, {"fitting", loads.fitting}, {"peak_bytes", loads.peak_bytes}};
}

/// Returns even loads for a prediction of an earlier version, which has none.
RankLoads read_loads(const PredictionJson& object) {
  if (!object.contains("rank_load")) return {};
  const PredictionJson& loads = object.at("rank_load");
  return {.worst = loads.at("worst").get<double>(),
          .fitting = loads.at("fitting").get<double>(),
          .peak_bytes = loads.at("peak_bytes").get<int64_t>()};
}

StepParts read_seconds(const PredictionJson& object) {
  return {.compute = object.at("compute").get<double>(),
          .communication = object.at("communication").get<double>(),
          .bubble = object.at("bubble").get<double>(),
          .optimizer = object.at("optimizer").get<double>(),
          .input = object.at("input").get<double>()};
}

StepMemory::Kinds read_kinds(const PredictionJson& object) {
  return {.parameters = object.at("parameters").get<int64_t>(),
          .gradients = object.at("gradients").get<int64_t>(),
          .states = object.at("states").get<int64_t>(),
          .activations = object.at("activations").get<int64_t>(),
          .buffers = object.at("buffers").get<int64_t>(),
          .host = object.at("host").get<int64_t>()};
}

PredictedRole read_role(const PredictionJson& object) {
  PredictedRole role{.name = object.at("name").get<std::string>(),
                     .ranks = object.at("ranks").get<int64_t>(),
                     .first_rank = object.at("first_rank").get<int64_t>(),
                     .peak_bytes = object.at("peak_bytes").get<int64_t>(),
                     .resident_bytes = object.at("resident_bytes").get<int64_t>(),
                     .fullest = object.at("fullest").get<std::string>(),
                     .kinds = read_kinds(object.at("kinds")),
                     .recompute = object.at("recompute").get<std::string>()};
  for (const PredictionJson& row : object.at("calls"))
    role.calls.push_back({.group = row.at("group").get<std::string>(),
                          .collective = row.at("collective").get<std::string>(),
                          .phase = row.at("phase").get<std::string>(),
                          .calls = row.at("calls").get<int64_t>(),
                          .bytes = row.at("bytes").get<double>()});
  for (const PredictionJson& row : object.at("links"))
    role.links.push_back({.link = row.at("link").get<std::string>(),
                          .calls = row.at("calls").get<int64_t>(),
                          .bytes = row.at("bytes").get<double>()});
  role.seconds = read_seconds(object.at("seconds"));
  return role;
}

Prediction read_prediction(const PredictionJson& object) {
  Prediction prediction{.parameters = object.value("parameters", 0.0),  // predictions of older versions have neither
                        .vocabulary = object.value("vocabulary", int64_t{0}),
                        .ranks = object.at("ranks").get<int64_t>(),
                        .fits = object.at("fits").get<bool>(),
                        .limit = object.at("limit").get<std::string>(),
                        .step_seconds = object.at("step_seconds").get<double>(),
                        .peak_bytes = object.at("peak_bytes").get<int64_t>(),
                        .mfu = object.at("mfu").get<double>(),
                        .mfu_formula = object.at("mfu_formula").get<std::string>(),
                        .flops_per_token = object.at("flops_per_token").get<double>(),
                        .seconds = read_seconds(object.at("seconds")),
                        .goodput = object.at("goodput").get<double>(),
                        .checkpoint_seconds = object.at("checkpoint_seconds").get<double>(),
                        .checkpoint_interval = object.at("checkpoint_interval").get<double>(),
                        .rank_load = read_loads(object)};
  for (const PredictionJson& role : object.at("roles")) prediction.roles.push_back(read_role(role));
  for (const PredictionJson& row : object.at("remedies"))
    prediction.remedies.push_back({.table = row.at("table").get<std::string>(),
                                   .peak_bytes = row.at("peak_bytes").get<int64_t>(),
                                   .step_seconds = row.at("step_seconds").get<double>(),
                                   .training = row.value("training", "")});
  for (const PredictionJson& row : object.value("models", PredictionJson::array()))  // older versions have none
    prediction.models.push_back({.name = row.at("name").get<std::string>(),
                                 .parameters = row.at("parameters").get<int64_t>(),
                                 .trained = row.at("trained").get<int64_t>(),
                                 .bytes = row.at("bytes").get<int64_t>()});
  for (const PredictionJson& row : object.at("assumptions")) prediction.assumptions.push_back(row.get<std::string>());
  return prediction;
}

/// Returns the message of the JSON library without its label, such as "[json.exception.out_of_range.403] ".
std::string reason_of(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t label = text.find("] ");
  return printable(label == std::string::npos ? text : text.substr(label + 2));
}

}  // namespace

std::string to_json(const Prediction& prediction) {
  PredictionJson roles = PredictionJson::array(), remedies = PredictionJson::array();
  for (const PredictedRole& role : prediction.roles) roles.push_back(role_json(role));
  for (const Remedy& remedy : prediction.remedies)
    remedies.push_back(
        {{"table", remedy.table},
         {"peak_bytes", remedy.peak_bytes},
         {"step_seconds", remedy.step_seconds},
         {"training", remedy.training}});
  PredictionJson models = PredictionJson::array();
  for (const PredictedModel& model : prediction.models)
    models.push_back(
        {{"name", model.name}, {"parameters", model.parameters}, {"trained", model.trained}, {"bytes", model.bytes}});
  const PredictionJson object{{"parameters", count_json(prediction.parameters)},
                              {"vocabulary", prediction.vocabulary},
                              {"models", std::move(models)},
                              {"ranks", prediction.ranks},
                              {"fits", prediction.fits},
                              {"limit", prediction.limit},
                              {"step_seconds", prediction.step_seconds},
                              {"peak_bytes", prediction.peak_bytes},
                              {"rank_load", loads_json(prediction.rank_load)},
                              {"mfu", prediction.mfu},
                              {"mfu_formula", prediction.mfu_formula},
                              {"flops_per_token", count_json(prediction.flops_per_token)},
                              {"seconds", seconds_json(prediction.seconds)},
                              {"goodput", prediction.goodput},
                              {"checkpoint_seconds", prediction.checkpoint_seconds},
                              {"checkpoint_interval", prediction.checkpoint_interval},
                              {"roles", std::move(roles)},
                              {"remedies", std::move(remedies)},
                              {"assumptions", prediction.assumptions}};
  return object.dump(-1, ' ', false, PredictionJson::error_handler_t::replace);
}

Prediction parse_prediction(std::string_view text, const std::string& name) {
  const PredictionJson object = parse_ordered_json(text, name, "plan", {.distinct_names = true});
  require(object.is_object(), "plan", name,
          ": a prediction must be a JSON object, as `colossal plan --json` writes it");
  try {
    return read_prediction(object);
  } catch (const nlohmann::json::exception& error) {
    throw Error("plan", concat(name, ": a prediction must have the members that `colossal plan --json` writes: ",
                               reason_of(error), "; write it again with this version"));
  }
}

}  // namespace colossal::plan
