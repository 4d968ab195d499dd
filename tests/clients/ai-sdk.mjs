// The AI SDK through one of its providers: prints what the test compares, as one line of JSON.
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, jsonSchema, streamText, tool } from 'ai'

const { provider, v1, model: name, text, warm, parameters, city } = JSON.parse(process.argv[2])
const settings = { baseURL: v1, apiKey: 'none' }
const providers = {
  openai: () => createOpenAI(settings)(name),
  compatible: () => createOpenAICompatible({ ...settings, name: 'quire', supportsStructuredOutputs: true })(name),
  anthropic: () => createAnthropic(settings)(name),
}
const greedy = { model: providers[provider](), temperature: 0, maxRetries: 0, maxOutputTokens: 60 }

const whole = await generateText({ ...greedy, prompt: text })

const pieces = []
for await (const piece of streamText({ ...greedy, prompt: text }).textStream) pieces.push(piece)

const tools = { weather: tool({ description: 'The weather of a city', inputSchema: jsonSchema(parameters) }) }
const called = await generateText({ ...greedy, prompt: warm, tools, toolChoice: 'required' })
const streamed = streamText({ ...greedy, prompt: warm, tools, toolChoice: 'required' })

const { object } = await generateObject({ ...greedy, prompt: text, schema: jsonSchema(city) })

console.log(
  JSON.stringify({
    text: whole.text,
    usage: whole.usage.outputTokens,
    pieces,
    input: called.toolCalls[0].input,
    streamed: (await streamed.toolCalls)[0].input,
    object,
  }),
)
