#include "colossal/cli/commands.h"

#include "colossal/cli/bench.h"
#include "colossal/cli/chat.h"
#include "colossal/cli/embed.h"
#include "colossal/cli/evaluate.h"
#include "colossal/cli/export.h"
#include "colossal/cli/generate.h"
#include "colossal/cli/help.h"
#include "colossal/cli/info.h"
#include "colossal/cli/models.h"
#include "colossal/cli/quantize.h"
#include "colossal/cli/report.h"
#include "colossal/cli/run.h"
#include "colossal/cli/schedule.h"
#include "colossal/cli/schedule_lr.h"
#include "colossal/cli/tokenize.h"
#include "colossal/cli/train.h"
#include "colossal/cli/train_tokenizer.h"

namespace colossal::cli {

std::vector<Command> commands(const models::Registry* models) {
  const auto with_models = [models](int (*command)(const Arguments&, const models::Registry*)) {
    return [command, models](const Arguments& arguments) { return command(arguments, models); };
  };
  return {
      {"train", "train the model that a config file describes, on as many ranks as it asks for", with_models(train)},
      {"generate", "continue a text with a trained or a Hugging Face model", with_models(generate)},
      {"chat", "a conversation in the terminal with a model that has a chat template", with_models(chat)},
      {"embed", "a vector for each text, by a BERT or a model that continues text", with_models(embed)},
      {"evaluate", "how well a model predicts a text: perplexity, bits a byte", with_models(evaluate)},
      {"quantize", "weights in 8 or 4 bits, by methods that look at what goes through them", with_models(quantize)},
      {"export", "write a trained model as a Hugging Face folder", with_models(export_model)},
      {"report", "one page that shows one or several training runs: curves, samples, configs", report},
      {"run", "start several ranks of another command on this host", run},
      {"schedule", "draw a pipeline schedule, or compare all of them", schedule},
      {"schedule-lr", "draw the learning rate over a run, or compare all schedules", schedule_lr},
      {"tokenize", "text to token ids and back, by any tokenizer that models come with", tokenize},
      {"tokenizer", "`tokenizer train`: learn a vocabulary from texts", tokenizer},
      {"bench", "measure parts of the system; `colossal bench` lists them", bench},
      {"models", "list the models: what each does, its presets and its own keys", with_models(list_models)},
      {"info", "what this machine and this build can do", info},
      {"help", "this list; `help COMMAND` for one of them, `help config` for the keys of a config file",
       [models](const Arguments& arguments) { return help(arguments, commands(models), models); }},
  };
}

const Command* find_command(const std::vector<Command>& commands, const std::string& name) {
  for (const Command& command : commands)
    if (name == command.name) return &command;
  return nullptr;
}

std::vector<std::string> names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

}  // namespace colossal::cli
