// npm's openai: prints what the test compares, as one line of JSON.
import OpenAI from 'openai'

const { v1, model, text, warm, parameters } = JSON.parse(process.argv[2])
const client = new OpenAI({ baseURL: v1, apiKey: 'none', maxRetries: 0 })
const messages = [{ role: 'user', content: text }]
const greedy = { model, temperature: 0 }

const chat = await client.chat.completions.create({ ...greedy, messages, max_tokens: 12 })

const pieces = []
const stream = await client.chat.completions.create({ ...greedy, messages, max_tokens: 12, stream: true })
for await (const chunk of stream) pieces.push(chunk.choices[0]?.delta?.content ?? '')

const called = await client.chat.completions.create({
  ...greedy,
  messages: [{ role: 'user', content: warm }],
  tools: [{ type: 'function', function: { name: 'weather', parameters } }],
  tool_choice: 'required',
  max_tokens: 60,
})

const response = await client.responses.create({ ...greedy, input: text, max_output_tokens: 12 })
const events = await client.responses.create({ ...greedy, input: text, max_output_tokens: 12, stream: true })
const deltas = []
for await (const event of events) if (event.type === 'response.output_text.delta') deltas.push(event.delta)

console.log(
  JSON.stringify({
    chat: chat.choices[0].message.content,
    usage: chat.usage.completion_tokens,
    streamed: pieces.join(''),
    arguments: JSON.parse(called.choices[0].message.tool_calls[0].function.arguments),
    response: response.output_text,
    deltas: deltas.join(''),
  }),
)
