// The methods of alignment, each a function that makes the objective of a run: a row of alignment.cpp.
//
// Fields that samples have besides those of texts (data/chats/chat_rows.h):
//   answer_lengths [B, K]      tokens of each text of a row that count, 0 for texts that it lacks; K is 2, or
//                              alignment.answers for reward
//   margins [B, 1]             reward: the margin that the record of a pair asks for
//   mean_answer_length [B, 1]  of pairs: mean of the first column over the global batch
//   desirable [B, 1]           of rated answers
// Fields that the step rule adds (Objective::added_fields), so that the loss can read them:
//   reference_scores [B, 2]    answer_sums() of the reference, of both texts of a row: dpo, ipo, kto
//   divergence [B, 1]          kto: z, which is the same in all rows of the global batch, held-out rows included. z is
//                              the mean of mismatched_log_ratios() over the global batch, at least 0
#pragma once
#include <memory>

#include "colossal/run/objective.h"
#include "colossal/run/objectives/alignment/keys.h"

namespace colossal::run {

/// Names of the fields that the step rule adds, both [B, ...] with dimensions Row and Other, in fp32 (fp64 in fp64
/// models).
inline constexpr char kReferenceScores[] = "reference_scores";
inline constexpr char kDivergence[] = "divergence";

/// Makes the objective of supervised fine-tuning: the mean negative log-likelihood of all counted tokens of the global
/// batch. Labels [B, S]: the next token where it belongs to an answer.
/// Errors ("objective"): a model that does not continue text.
std::unique_ptr<Objective> make_fine_tuning(const Config& config, const OwnTables& tables,
                                            const models::ModelShape& shape);

/// Make the objectives of preferences (PreferenceObjective). A row has two texts: the chosen and the rejected answer of
/// a pair, or for kto a rated answer and its mismatched one. The weight is the number of rows.
/// Errors ("objective"): a model that does not continue text. ("alignment"): see check_keys().
std::unique_ptr<Objective> make_dpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_ipo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_kto(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_simpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_orpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
/// Makes the objective of reward models, whose rows are pairs or rankings. Errors ("objective"): a model that neither
/// continues text nor has one output (models::with_outputs).
std::unique_ptr<Objective> make_reward(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

}  // namespace colossal::run
